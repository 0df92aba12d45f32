#include "ir.h"
#include "metal.h"
namespace metal {
void make_uniform(Code&, const Options&) {}
}
