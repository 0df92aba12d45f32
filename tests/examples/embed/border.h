#ifndef EMBED_BORDER_H
#define EMBED_BORDER_H

#ifdef __cplusplus
extern "C"
#endif
float border_sum(const float *x, int n);                            /* -1 after an error */

#endif
