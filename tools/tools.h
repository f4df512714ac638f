/* The subcommands of phalanx. Each reads its own arguments (argv[0] is its name) and returns the exit status: 0 done,
 * 1 failed, 2 wrong usage or configuration. */
#pragma once

int train_main(int argc, char **argv);
int plan_main(int argc, char **argv);
int schedule_main(int argc, char **argv);
int tokenize_main(int argc, char **argv);
int detokenize_main(int argc, char **argv);
int merge_main(int argc, char **argv);
int supervise_main(int argc, char **argv);
int split_main(int argc, char **argv);
int convert_main(int argc, char **argv);
int generate_main(int argc, char **argv);
int eval_main(int argc, char **argv);
int report_main(int argc, char **argv);
int timeline_main(int argc, char **argv);
int inspect_main(int argc, char **argv);
int keys_main(int argc, char **argv);
int islands_main(int argc, char **argv);
int server_main(int argc, char **argv);
int bench_main(int argc, char **argv);
