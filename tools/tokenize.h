/* phalanx tokenize: text files to a data set of token ids. Returns the program's exit status. */
#ifndef PHALANX_TOOLS_TOKENIZE_H
#define PHALANX_TOOLS_TOKENIZE_H

int tokenize_main(int argc, char **argv); /* argv[0] is "tokenize" */

#endif
