"""Golden answers: what the product says of every bundled recording, kept as data and compared to the digit.

    python -m tests.golden            name what differs from the data, exit code 1 if anything does
    python -m tests.golden --write    write the data anew; what changed is then read in `git diff`
    python -m tests.golden --full NAME   print the answers about one recording whole, for a diff of two checkouts

`recordings/NAME.json` has the commands' answers about a recording of `sample_traces/`. Each is the exit code, what
`--json` prints, the text that users read, and what goes to stderr; a refusal is an answer. Long lists are kept as their
number of rows, the first row, and of every column a digest, with the sum if it holds numbers. Long texts are kept as
their first and last lines and a digest of the others. The names of several zeros stand in one line, as "0.0".

`comparisons.json` has those of recordings with each other, `pages/` what the dashboard sends for the first view of a
recording, `reports/` the HTML report, `simulated/` what `run --backend sim` makes, and `shared.json` the
answers about recordings outside the repository, below the folder that INTERTOKEN_RECORDINGS names.
"""
