/* phalanx detokenize: token ids to text. Returns the program's exit status. */
#ifndef PHALANX_TOOLS_DETOKENIZE_H
#define PHALANX_TOOLS_DETOKENIZE_H

int detokenize_main(int argc, char **argv); /* argv[0] is "detokenize" */

#endif
