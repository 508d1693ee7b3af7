# A shell with what shells do: pipes, subshells, jobs in the background, traps, and a limit of time. $1: the programs.
trap 'echo trapped' TERM
"$1/work" 2 | tr a-z A-Z
(exec "$1/work" 3) 2>/dev/null
"$1/endings" returns > returned &
wait $!
echo "returned $?"
kill -TERM $$
"$1/endings" fault 2>/dev/null
echo "killed $?"
timeout 5 "$1/endings" _exit
echo "left $?"
if [ -x "$1/static" ]; then "$1/static"; fi
exit 14
