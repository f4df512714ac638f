"""A cable that takes its time: what arrives at one network interface leaves at the other so many seconds later, and the reverse.

    slow_relay.py INTERFACE INTERFACE SECONDS

For slow_link.sh, as netem is not in every kernel. Frames go through packet sockets, with the kernel's header about segments that
the sender left to its device: the kernels at both ends cut and check them as on a cable. Needs root; ends with its process.
"""

import collections
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, ETH_P_ALL, SO_RCVBUFFORCE = 263, 15, 3, 33
LONGEST = 1 << 17


def tap(name):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    s.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
    s.bind((name, ETH_P_ALL))
    s.setblocking(False)
    return s


def main():
    ends, delay = [tap(name) for name in sys.argv[1:3]], float(sys.argv[3])
    under_way = [collections.deque(), collections.deque()]  # towards the other end: (when, frame)
    while True:
        now = time.monotonic()
        waits = [q[0][0] - now for q in under_way if q]
        ready, _, _ = select.select(ends, [], [], max(0, min(waits)) if waits else None)
        now = time.monotonic()
        for side in (0, 1):
            while ends[side] in ready:
                try:
                    frame, address = ends[side].recvfrom(LONGEST)
                except BlockingIOError:
                    break
                if address[2] != socket.PACKET_OUTGOING:
                    under_way[side].append((now + delay, frame))
            while under_way[side] and under_way[side][0][0] <= now:
                frame = under_way[side].popleft()[1]
                try:
                    ends[1 - side].send(frame)
                except OSError:
                    pass  # lost, as on a cable


if __name__ == "__main__":
    main()
