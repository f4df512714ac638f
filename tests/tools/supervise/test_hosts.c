/* The host file of `phalanx supervise`, and the words of its command. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tools/supervise/hosts.h"
#include "tools/supervise/supervise_command.h"
#include "tests/test.h"

static status read_text(hosts *h, void **state, const char *text)
{
    AUTO_FREE char *path = workfolder_path(*state, "hosts");
    workfolder_write(path, text, (int64_t)strlen(text));
    return hosts_read(h, path);
}

static char *written(const hosts *h, void **state, int ranks)
{
    int64_t bytes;
    AUTO_FREE char *path = workfolder_path(*state, "written");
    assert_int_equal(hosts_write(h, path, ranks), STATUS_OK);
    return (char *)workfolder_read(path, &bytes);
}

TEST(hosts_are_left_out_and_spares_taken)
{
    hosts h;
    assert_int_equal(read_text(&h, state, "# the cluster\na slots=4\n\n b.cluster.net slots=4 # old\nc:2\nd\n"),
                     STATUS_OK);
    assert_int_equal(h.count, 4);
    assert_int_equal(hosts_slots(&h), 11);
    char *text = written(&h, state, 8);
    assert_string_equal(text, "a slots=4\nb.cluster.net slots=4\n");
    free(text);
    hosts_find(&h, "a.cluster.net")->out = true;
    assert_int_equal(hosts_slots(&h), 7);
    text = written(&h, state, 5);
    assert_string_equal(text, "b.cluster.net slots=4\nc slots=1\n");
    free(text);
    assert_ptr_equal(hosts_find(&h, "b"), &h.entry[1]);
    assert_ptr_equal(hosts_find(&h, "b.cluster.net"), &h.entry[1]);
    assert_null(hosts_find(&h, "b.elsewhere.net"));
    assert_null(hosts_find(&h, "bb"));
    assert_null(hosts_find(&h, ""));
    hosts_free(&h);
}

TEST(hosts_are_named_by_addresses_too)
{
    hosts h;
    char own[256] = "";
    assert_int_equal(gethostname(own, sizeof own - 1), 0);
    assert_int_equal(read_text(&h, state, "a slots =  4\nfe80::1 slots= 2\n[fe80::2]:3\n192.0.2.7:5\n127.0.0.1\n"),
                     STATUS_OK);
    assert_int_equal(h.count, 5);
    assert_int_equal(hosts_slots(&h), 15);
    char *text = written(&h, state, 14);
    assert_string_equal(text, "a slots=4\nfe80::1 slots=2\nfe80::2 slots=3\n192.0.2.7 slots=5\n");
    free(text);
    assert_null(hosts_find(&h, "localhost"));
    assert_ptr_equal(hosts_find_address(&h, "localhost"), &h.entry[4]);
    assert_ptr_equal(hosts_find_address(&h, own), &h.entry[4]); /* whatever its name leads to elsewhere */
    assert_ptr_equal(hosts_find_address(&h, "192.0.2.7"), &h.entry[3]);
    assert_null(hosts_find_address(&h, "192.0.2.8"));
    assert_null(hosts_find_address(&h, ""));
    hosts_free(&h);
}

TEST(wrong_host_files_are_refused_with_their_line)
{
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"", "names no host"},
        {"# nothing\n\n", "names no host"},
        {"a slots=0\n", "hosts:1: expected NAME slots=N"},
        {"a\na slots=2\n", "hosts:2: a is named twice"},
        {"a:-3\n", "hosts:1"},
        {"a\nb slots = 2000000000\n", "hosts:2: expected NAME slots=N, N from 1 to 65536"},
        {"a slots=4x\n", "hosts:1"},
        {"a slots=\n", "hosts:1"},
        {"a= slots=4\n", "hosts:1"}, /* a host named a=slots=4 */
        {"[a:b]\n", "hosts:1"},      /* a host named a, with b slots */
        {"[a:b:c]1\n", "hosts:1"},
        {"[[a:b:c]:2\n", "hosts:1"},
        {"a slots=99999999999999999999\n", "hosts:1"},
    };
    hosts h;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_text(&h, state, cases[i].text), STATUS_USAGE);
        workfolder_message_has(cases[i].word);
    }
    assert_int_equal(hosts_read(&h, "/nowhere/hosts"), STATUS_USAGE);
    workfolder_message_has("/nowhere/hosts");
}

static char *joined(char **words)
{
    char *text = must_strdup("");
    for (int i = 0; words[i]; i++) {
        char *next = must_format("%s%s%s", text, i ? " " : "", words[i]);
        free(text);
        text = next;
    }
    supervise_command_free_words(words);
    return text;
}

enum { WORDS = 32 };

/* The words of a line, which is changed. */
static status open_line(supervise_command *k, char *line, char *words[WORDS])
{
    int count = 0;
    for (char *word; (word = strtok_r(line, "|", &line));)
        words[count++] = word;
    return supervise_command_open(k, count, words);
}

TEST(words_are_filled_in)
{
    char line[] = "mpirun|-np|{ranks}|--hostfile|{hosts}|-x|N={ranks}:{ranks}|build/phalanx|train|demo.yaml|"
                  "parallel.data=8|run.folder=x|checkpoint.resume=never";
    char parts[] = "mpirun|-np|1|phalanx|train|a.yaml|:|-np|1|phalanx|train|a.yaml";
    char folder[] = "mpirun|-np|{ranks}|phalanx|train|a.yaml|run.folder=q{ranks}";
    char fixed[] = "phalanx|train|a.yaml", none[] = "sh|-c|phalanx train a.yaml", bare[] = "phalanx|train";
    char *words[WORDS];
    supervise_command k;
    assert_int_equal(open_line(&k, line, words), STATUS_OK);
    assert_int_equal(k.config, 9);
    assert_true(supervise_command_sized(&k));
    supervise_start how = {.id = "abc", .ranks = 12, .hosts = "/r/hosts", .data = 3};
    char *text = joined(supervise_command_expand(&k, &how));
    assert_string_equal(text, "mpirun -np 12 --hostfile /r/hosts -x N=12:12 build/phalanx train demo.yaml "
                              "--start-id=abc run.folder=x checkpoint.resume=never parallel.data=3");
    free(text);
    how.data = 0;
    how.resume = "auto";
    text = joined(supervise_command_expand(&k, &how));
    assert_non_null(strstr(text, "demo.yaml --start-id=abc parallel.data=8 run.folder=x checkpoint.resume=auto"));
    free(text);
    assert_int_equal(open_line(&k, parts, words), STATUS_OK); /* every part of one job is of the same start */
    text = joined(supervise_command_expand(&k, &how));
    assert_string_equal(text, "mpirun -np 1 phalanx train a.yaml --start-id=abc : -np 1 phalanx train a.yaml "
                              "--start-id=abc checkpoint.resume=auto");
    free(text);
    assert_int_equal(open_line(&k, folder, words), STATUS_USAGE);
    workfolder_message_has("run.folder=q{ranks}: {ranks} and {hosts} are the launcher's");
    assert_int_equal(open_line(&k, fixed, words), STATUS_OK);
    assert_false(supervise_command_sized(&k));
    assert_int_equal(open_line(&k, none, words), STATUS_USAGE);
    assert_int_equal(open_line(&k, bare, words), STATUS_USAGE);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
