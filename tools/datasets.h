/* phalanx merge and phalanx split: data sets into one, one into two. Each returns the program's exit status. */
#ifndef PHALANX_TOOLS_DATASETS_H
#define PHALANX_TOOLS_DATASETS_H

int datasets_merge_main(int argc, char **argv); /* argv[0] is "merge" */
int datasets_split_main(int argc, char **argv); /* argv[0] is "split" */

#endif
