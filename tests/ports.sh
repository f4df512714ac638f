# Sourced by tests that start a server.

# Prints a port of 127.0.0.1 that nobody listens at. The kernel gives connections those from 32768 on: a server cannot
# count on one of them.
free_port() {
    local port
    for _ in $(seq 100); do
        port=$((20000 + RANDOM % 12000))
        (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
    echo "no port is free" >&2
    return 1
}
