/* A shared library that computes with an mlxvk of its own: no symbol of that is seen outside. */
#ifndef EMBED_FILTER_H
#define EMBED_FILTER_H

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
float filter_sum(const float *x, int n);                            /* -1 after an error */

#endif
