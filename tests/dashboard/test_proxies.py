"""Behind the real nginx and Caddy, with TLS, configured by the very text of docs/proxy.md.

Skipped where they are not installed, unless INTERTOKEN_REQUIRE_BROWSER=1.
"""

import http.client
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.dashboard.conftest import missing

DOCS = (Path(__file__).parents[2] / "docs" / "proxy.md").read_text()
NAME, TOKEN = "gpu.example.org", "a token & 16 characters"
NGINX = """
daemon off; {user} pid {folder}/nginx.pid; error_log {folder}/error.log; events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {server}
}}
"""
CADDY = "{{\n    admin off\n    auto_https disable_redirects\n}}\n{server}"


def block(language):
    return re.search(f"```{language}\n(.*?)```", DOCS, re.S)[1]


def program(name):
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    return found or missing(f"no {name}; install it (Debian: apt-get install nginx-light caddy openssl)")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        [program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={NAME}", "-addext",
         f"subjectAltName=DNS:{NAME}", "-days", "2", "-keyout", folder / "key", "-out", folder / "pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


@contextmanager
def running(command, **options):
    process = subprocess.Popen([str(part) for part in command], text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout:
            process.stdout.close()


@pytest.fixture(scope="module")
def dashboard_port(runs, tmp_path_factory):
    """The dashboard as the docs start it."""
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    words = shlex.split(re.search(r"^\$ (intertoken dashboard .*)$", DOCS, re.M)[1])
    given = {"intertoken": None, "runs": str(runs), "token": str(token)}
    arguments = [given.get(word, word) for word in words[1:]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "from tracer.cli import main; main()", *arguments, "--port", "0", "--no-cache"]
    with running(command, env=environment, stdout=subprocess.PIPE) as process:
        yield int(re.search(r"http://127.0.0.1:(\d+)/intertoken/", process.stdout.readline())[1])


def is_listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxy(request, dashboard_port, certificate, tmp_path_factory):
    """The port of a proxy that is configured as in the docs, but for ports and the certificate."""
    folder = tmp_path_factory.mktemp(request.param)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = block(request.param).replace(":8050", f":{dashboard_port}")
    for kind in ("pem", "key"):
        server = server.replace(f"/etc/ssl/{NAME}.{kind}", str(certificate / kind))
    if request.param == "nginx":
        text = NGINX.format(
            folder=folder,
            server=server.replace("listen 443", f"listen 127.0.0.1:{port}"),
            user="user root;" if os.geteuid() == 0 else "",  # who else may not write into our folder
        )
        (folder / "conf").write_text(text)
        command = [program("nginx"), "-e", folder / "error.log", "-p", folder, "-c", folder / "conf"]
    else:
        site = server.replace(f"{NAME} {{", f"https://{NAME}:{port} {{\n    bind 127.0.0.1", 1)
        (folder / "conf").write_text(CADDY.format(server=site))
        command = [program("caddy"), "run", "--adapter", "caddyfile", "--config", folder / "conf"]
    environment = os.environ | {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "log").open("w") as log, running(command, env=environment, stdout=log, stderr=log) as process:
        deadline = time.monotonic() + 20
        while not is_listening(port):
            assert (process.poll(), time.monotonic() < deadline) == (None, True), (folder / "log").read_text()
            time.sleep(0.05)
        yield port


@pytest.fixture
def ask(proxy, certificate):
    """Ask the proxy over TLS by its name."""
    with ExitStack() as connections:

        def asked(method, address, body=None, **headers):
            plain = socket.create_connection(("127.0.0.1", proxy), 20)
            context = ssl.create_default_context(cafile=certificate / "pem")
            connection = http.client.HTTPSConnection(NAME, proxy)
            connection.sock = context.wrap_socket(plain, server_hostname=NAME)
            connections.callback(connection.close)
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, address, body, named)
            answer = connection.getresponse()
            answer.text = answer.read().decode()
            return answer

        yield asked


def log_in(ask, proxy, token=TOKEN, place="/", **headers):
    form = urlencode({"token": token, "next": place})
    kind, origin = "application/x-www-form-urlencoded", f"https://{NAME}:{proxy}"
    return ask("POST", "/intertoken/login", form, Content_Type=kind, **{"Origin": origin} | headers)


def test_the_session_is_for_tls_and_redirects_stay(ask, proxy):
    assert 'action="/intertoken/login"' in ask("GET", "/intertoken/").text
    answer = log_in(ask, proxy, place="/graph/?run=a")
    assert (answer.status, answer.headers["Location"]) == (303, "/intertoken/graph/?run=a")
    cookie = answer.headers["Set-Cookie"]
    assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/intertoken"} <= set(cookie.split("; "))
    session = cookie.partition(";")[0]
    page = ask("GET", "/intertoken/", Cookie=session)
    assert page.status == 200
    assert "/intertoken/_dash-component-suites/" in page.text
    assert ask("GET", "/intertoken/graph", Cookie=session).headers["Location"] == "/intertoken/graph/"
    assert ask("GET", "/intertoken/graph?run=a", Cookie=session).headers["Location"] == "/intertoken/graph/?run=a"
    bare = ask("GET", "/intertoken")
    assert bare.headers["Location"] in {"/intertoken/", f"https://{NAME}:{proxy}/intertoken/"}


def test_other_sites_are_refused_and_slices_get_through(ask, proxy):
    session = log_in(ask, proxy).headers["Set-Cookie"].partition(";")[0]
    begun = {"Cookie": session, "Origin": f"https://{NAME}:{proxy}"}
    begin = "/intertoken/upload?name=x&size=2000000"
    for origin in ("https://evil.example", "null", "http://["):
        assert ask("POST", begin, Cookie=session, Origin=origin).status == 403
    answer = ask("POST", begin, **begun)
    assert answer.status == 201
    key = re.search(r'"id": ?"([^"]+)"', answer.text)[1]
    assert ask("PUT", f"/intertoken/upload/{key}?at=0", bytes(1 << 20), **begun).status == 200
    assert ask("DELETE", f"/intertoken/upload/{key}", **begun).status == 200


def test_what_clients_say_of_themselves_is_not_believed(ask, proxy):
    codes = [
        log_in(ask, proxy, f"wrong {number}", X_Forwarded_For=f"10.0.0.{number}, 10.1.0.{number}").status
        for number in range(13)
    ]
    assert codes[-3:] == [429] * 3  # counted for the address from which they really come
    assert log_in(ask, proxy).status == 303
    forged = {"X_Forwarded_Proto": "http", "X_Forwarded_Host": "evil.example", "X_Forwarded_Prefix": "/evil",
              "Forwarded": "for=10.0.0.1;host=evil.example;proto=http"}  # fmt: skip
    answer = log_in(ask, proxy, **forged)
    assert "Secure" in answer.headers["Set-Cookie"].split("; ")
    assert answer.headers["Location"] == "/intertoken/"
    assert "evil" not in ask("GET", "/intertoken/graph", Cookie="", **forged).text
    assert "intertoken/login" not in ask("GET", "/intertoken/", Host="evil.example").text, "a name that is not allowed"
