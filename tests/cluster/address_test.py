#!/usr/bin/env python3
"""Addresses: families, several cards, names that lie or do not resolve, over several nodes.
Rows L46 L47 L51 L52 L54 L58 R10 R11 S15."""

import ipaddress
import sys
import unittest

from cluster_case import TELL, WAIT, ClusterCase
from nodes_job import PORT, SECRET
from lab import DDPRUN, wait_until

HOLD_PORTS = """
import socket, sys
held = []
for port in range(29400, 29600):
    if port == int(sys.argv[1]): continue
    s = socket.socket(); s.bind(("0.0.0.0", port)); s.listen(); held.append(s)
print("held", flush=True)
import time; time.sleep(1000)
"""


class AddressTest(ClusterCase):
    def master(self, job, generation, count):
        """MASTER_ADDR and MASTER_PORT, which all ranks must agree on."""
        environments = self.environments(job, generation, count)
        found = {(values["MASTER_ADDR"], values["MASTER_PORT"]) for values in environments.values()}
        self.assertEqual(len(found), 1, found)
        return found.pop()

    def test_l54_s15_nodes_that_have_ipv6_alone(self):
        for way in ("apart", "together"):
            with self.subTest(way):
                lab = self.lab("ab", ipv4=False)
                job = self.job(lab, TELL, 2, way=way).start()
                job.wait_workers(1)
                address, _ = self.master(job, 1, 2)
                self.assertEqual(ipaddress.ip_address(address).version, 6)
                self.stop(job)

    def test_l54_r11_host_of_both_families_is_reached_by_either(self):
        lab = self.lab("abc")
        job = self.job(lab, TELL, 3, way="together")
        job.host()
        job.address = f"[{lab['a'].ipv6}]:{PORT}"
        job.join("b")
        job.address = f"{lab['a'].ipv4}:{PORT}"
        job.join("c")
        job.wait_workers(1)
        self.stop(job)

    def test_l51_s15_host_name_that_does_not_resolve_does_not_matter(self):
        lab = self.lab("ab", host_names={"b": "bogus.invalid"})
        lab["a"].set_hosts("127.0.0.1 localhost\n")
        lab["b"].set_hosts("127.0.0.1 localhost\n")
        job = self.job(lab, TELL, 2, way="together").start()
        job.wait_workers(1)
        address, _ = self.master(job, 1, 2)
        ipaddress.ip_address(address)  # numeric
        self.stop(job)

    def test_l52_s15_address_that_was_typed_is_never_replaced_by_a_name(self):
        lab = self.lab("ab")
        for name in "ab":
            lab[name].set_hosts(f"127.0.0.1 localhost\n{lab['a'].ipv4} liar.example\n127.0.1.1 {name}\n")
        job = self.job(lab, TELL, 2, way="together").start()
        job.wait_workers(1)
        address, _ = self.master(job, 1, 2)
        self.assertIn(address, (lab["a"].ipv4, lab["b"].ipv4))
        self.stop(job)

    def test_l46_loopback_endpoint_of_several_nodes_is_refused_at_once(self):
        lab = self.lab("a")
        for endpoint in ("127.0.0.1:29400", "localhost:29400", "[::1]:29400"):
            with self.subTest(endpoint):
                code, output = lab["a"].run([DDPRUN, "--nnodes", "2", "--coordinator", endpoint, *WAIT],
                                            env={"DDPRUN_SECRET": SECRET}, cwd=lab.shared)
                self.assertEqual(code, 2, output)
                self.assertIn(endpoint.rsplit(":", 1)[0].strip("[]"), output)
                self.assertFalse((lab.shared / "runs").exists())

    def test_l47_node_with_two_cards_uses_the_one_that_leads_to_the_coordinator(self):
        lab = self.lab("ab")
        lab["b"].add_dead_card("eth1", "10.99.0.2/24")
        job = self.job(lab, TELL, 2, way="together").start()
        job.wait_workers(1)
        joined = job.wait_event("node_joined", node="b")
        self.assertEqual(joined["address"], lab["b"].ipv4)
        wait_until(lambda: lab["b"].ipv4 in job.members["b"].output(), 5, "the address that is used, told")
        self.stop(job)

    def test_l47_iface_and_advertise_addr_choose_the_address(self):
        lab = self.lab("ab")
        lab["b"].ip("addr add 10.77.200.2/16 dev eth0")
        for options in (["--advertise-addr", "10.77.200.2"],):
            with self.subTest(options):
                job = self.job(lab, TELL, 2, way="together")
                job.host()
                job.join("b", extra=options)
                job.wait_workers(1)
                self.assertEqual(job.wait_event("node_joined", node="b")["address"], "10.77.200.2")
                self.stop(job)

    def test_l58_l47_card_that_peers_cannot_reach_is_named_before_workers_hang(self):
        lab = self.lab("ab")
        lab["b"].add_dead_card("eth1", "10.99.0.2/24")
        # Else the node answers for that address on its other card, too, and it can be reached.
        self.assertEqual(lab["b"].run(["sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore"])[0], 0)
        job = self.job(lab, TELL, 2, way="together", options=["--max-restarts", "0", "--join-timeout", "8"])
        job.host(["--node-rank", "1"])
        job.join("b", extra=["--iface", "eth1", "--node-rank", "0"])
        code = job.host_process.wait(40)
        self.assertNotEqual(code, 0)
        output = job.host_process.output()
        self.assertIn("10.99.0.2", output)
        self.assertIn("--iface", output)
        self.assertEqual(job.log(1, 1), "")  # the node that could not reach it has started nothing

    def test_l58_node_that_nobody_reaches_is_sent_away_and_the_others_go_on(self):
        for rank in (0, 1):  # of the bad one; all others try rank 0's node
            with self.subTest(rank=rank):
                lab = self.lab("acb")
                lab["b"].add_dead_card("eth1", "10.99.0.2/24")
                self.assertEqual(lab["b"].run(["sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore"])[0], 0)
                job = self.job(lab, TELL, "2:3", way="together")
                job.host()
                job.join("b", extra=["--iface", "eth1", "--node-rank", str(rank)])
                job.join("c")
                self.assertEqual(job.members["b"].wait(60), 2)
                for part in ("10.99.0.2", "--advertise-addr", "--iface"):
                    self.assertIn(part, job.members["b"].output())
                self.assertEqual(job.wait_event("join_refused")["kind"], "address")
                self.assertEqual(job.find("node_lost")["node"], "b")
                self.assertTrue(job.wait_event("restart_scheduled")["free"])
                self.assertIsNone(job.find("node_left_out"))
                started = job.wait_event("generation_started", generation=2)
                self.assertEqual(set(started["nodes"]), {"a", "c"})
                job.wait_workers(2)
                self.stop(job)

    def test_r10_port_of_rank_0_is_held_until_its_worker_binds_it(self):
        lab = self.lab("ab")
        thief = [sys.executable, "-c", "import os, socket, sys; s = socket.socket(); "
                 "r = s.connect_ex((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))); print('connect', r); "
                 "b = socket.socket(); b.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
                 "if os.environ['RANK'] == '0': b.bind(('', int(os.environ['MASTER_PORT']))); b.listen(); print('bound')"]
        job = self.job(lab, ["--", *thief], 2, way="together").start()
        self.assertEqual(job.wait_end(30)[0], 0)
        self.assertIn("bound", job.log(1, 0))

    def test_r10_other_programs_ports_do_not_matter(self):
        lab = self.lab("ab")
        for name in "ab":
            lab[name].spawn([sys.executable, "-c", HOLD_PORTS, str(PORT)]).wait_output("held", 10)
        job = self.job(lab, TELL, 2, way="together").start()
        job.wait_workers(1)
        self.assertNotIn(int(self.master(job, 1, 2)[1]), range(29400, 29600))
        job.host_process.signal(2)
        job.host_process.wait(20)


if __name__ == "__main__":
    unittest.main(verbosity=2)
