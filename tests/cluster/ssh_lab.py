"""A lab (lab.py) whose nodes run a real sshd, and a client configuration that reaches them all as root with one key."""

import os
import pathlib
import shutil
import subprocess
import unittest

from lab import Lab, require

SSHD = "/usr/sbin/sshd"
PORT = 2222


def require_ssh():
    require()
    if not os.path.exists(SSHD) or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        raise unittest.SkipTest("needs sshd and ssh (Debian packages openssh-server and openssh-client)")


class SshLab(Lab):
    """Every node but those in `without` runs sshd; `command` is what --ssh is given."""

    def __init__(self, names, without=(), **options):
        super().__init__(names, **options)
        try:
            self.ssh_folder = self.folder / "ssh"
            self.ssh_folder.mkdir(mode=0o700)
            os.makedirs("/run/sshd", exist_ok=True)  # sshd's own; the package's service makes it
            self.key = self.make_key("client")
            self.host_key = self.make_key("host")
            self.write("authorized", pathlib.Path(f"{self.key}.pub").read_text(encoding="utf-8"))
            host_key = " ".join(pathlib.Path(f"{self.host_key}.pub").read_text(encoding="utf-8").split()[:2])
            self.known = self.write("known", "".join(f"[{name}]:{PORT} {host_key}\n" for name in names))
            self.command = self.client("client.conf", self.known, self.key)
            self.servers = {name: self.start_sshd(name) for name in names if name not in without}
        except BaseException:
            self.close()
            raise

    def write(self, name, text):
        path = self.ssh_folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return path

    def make_key(self, name):
        path = self.ssh_folder / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)], check=True)
        return path

    def client(self, name, known, key):
        """A client configuration; returns the ssh command that uses it."""
        path = self.write(name, f"Host *\n Port {PORT}\n User root\n IdentityFile {key}\n IdentitiesOnly yes\n IdentityAgent none\n"
                                f" UserKnownHostsFile {known}\n GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking yes\n")
        return f"ssh -F {path}"

    def start_sshd(self, name):
        config = self.write(f"sshd-{name}", f"Port {PORT}\nHostKey {self.host_key}\nAuthorizedKeysFile {self.ssh_folder}/authorized\n"
                                            "UsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n"
                                            f"PidFile {self.folder}/{name}/sshd.pid\n")
        server = self[name].spawn([SSHD, "-D", "-e", "-f", config])
        server.wait_output("Server listening on", 20)
        return server
