/* The program's own. */
#define VOLK_IMPLEMENTATION
#include <volk.h>
