/* What a compute shader asks of the host that runs it, from SPIR-V with names (glslang without -g0).
 *
 *   reflect FILE.spv
 *
 * prints lines of words, which tests/tools/kernel-header makes C of:
 *
 *   capability NUMBER                       SPIR-V's number
 *   extension NAME
 *   size X Y Z                              of a workgroup; "id 0" stands for specialization constant 0
 *   constant ID TYPE NAME                   in the order of their numbers
 *   push NAME SIZE                          the push-constant block, then its members in order:
 *   member OFFSET SIZE NAME DECLARATION     the declaration is C
 *   binding NUMBER NAME ACCESS VIEWS        of storage buffers, by their numbers; ACCESS is what code does:
 *                                           none, r, w or rw, whatever is declared; VIEWS are the blocks there
 *
 * Names are the shader's own, without a "_" at their end, in lower case for constants; a block of a storage buffer is
 * called NAME_view. Anything that the host could not be told is an error. */
#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum op {
    OP_NAME = 5, OP_MEMBER_NAME = 6, OP_EXTENSION = 10, OP_EXECUTION_MODE = 16, OP_CAPABILITY = 17, OP_TYPE_BOOL = 20,
    OP_TYPE_INT = 21, OP_TYPE_FLOAT = 22, OP_TYPE_VECTOR = 23, OP_TYPE_MATRIX = 24, OP_TYPE_ARRAY = 28,
    OP_TYPE_RUNTIME_ARRAY = 29, OP_TYPE_STRUCT = 30, OP_TYPE_POINTER = 32, OP_CONSTANT = 43, OP_SPEC_TRUE = 48,
    OP_SPEC_FALSE = 49, OP_SPEC_CONSTANT = 50, OP_SPEC_COMPOSITE = 51, OP_CALL = 57, OP_VARIABLE = 59, OP_LOAD = 61,
    OP_STORE = 62, OP_COPY_MEMORY = 63, OP_ACCESS_CHAIN = 65, OP_PTR_CHAIN = 67, OP_DECORATE = 71,
    OP_MEMBER_DECORATE = 72, OP_COPY_OBJECT = 83, OP_ATOMIC_LOAD = 227, OP_ATOMIC_STORE = 228, OP_ATOMIC_LAST = 242,
    OP_EXECUTION_MODE_ID = 331, OP_COOPERATIVE_LOAD = 4457, OP_COOPERATIVE_STORE = 4458,
    OP_TENSOR_LOAD = 5367, OP_TENSOR_STORE = 5368, OP_ATOMIC_FLOAT_ADD = 6035
};
enum { SPEC_ID = 1, ARRAY_STRIDE = 6, MATRIX_STRIDE = 7, BUILT_IN = 11, WORKGROUP_SIZE = 25, BINDING = 33, OFFSET = 35,
       PUSH_CONSTANT = 9, STORAGE_BUFFER = 12, LOCAL_SIZE = 17, LOCAL_SIZE_ID = 38 };
enum { MOST_BINDINGS = 32, MOST_CONSTANTS = 64, MOST_MEMBERS = 256, READS = 1, WRITES = 2 };

struct member { const char *name; uint32_t offset, matrix_stride; };
struct id {
    const uint32_t *type, *at;                /* its OpType..., its definition */
    const char *name;
    struct member *members;                   /* of a struct: as many as its instruction has operands */
    uint32_t spec, stride, binding;           /* spec and binding: plus one */
    uint32_t root;                            /* the variable that a pointer points into */
    uint32_t access;
};

static const char *file = "reflect";
static struct id *ids;
static uint32_t bound;
static uint32_t size[3] = { 1, 1, 1 };
static bool size_is_id[3];

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "reflect: %s: ", file);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static struct id *id_of(uint32_t id)
{
    if (!id || id >= bound) fail("id %u is out of bounds", id);
    return &ids[id];
}

static const uint32_t *definition(uint32_t id)
{
    if (!id_of(id)->at) fail("id %u is not defined", id);
    return ids[id].at;
}
static uint32_t op_of(const uint32_t *w) { return w[0] & 0xffff; }
static uint32_t length_of(const uint32_t *w) { return w[0] >> 16; }

static struct member *member_of(uint32_t id, uint32_t i)
{
    struct id *s = id_of(id);
    if (i >= MOST_MEMBERS) fail("struct %u has too many members", id);
    if (!s->members && !(s->members = calloc(MOST_MEMBERS, sizeof *s->members))) fail("out of memory");
    return &s->members[i];
}

/* ---- reading ---- */

static void read_decoration(const uint32_t *w, uint32_t n)
{
    struct id *id = id_of(w[1]);
    if (n < 4) return;
    if (w[2] == SPEC_ID) id->spec = w[3] + 1;
    if (w[2] == ARRAY_STRIDE) id->stride = w[3];
    if (w[2] == BINDING) id->binding = w[3] + 1;
}

/* A workgroup's size by constants overrules the one of the entry point. */
static void read_workgroup_size(const uint32_t *w, const bool *is_size)
{
    for (uint32_t i = 0; i < 3 && is_size[w[2]]; i++) {
        const uint32_t *part = definition(w[3 + i]);
        size_is_id[i] = op_of(part) == OP_SPEC_CONSTANT;
        size[i] = size_is_id[i] ? id_of(w[3 + i])->spec - 1 : part[3];
    }
}

static void read_execution_mode(const uint32_t *w, uint32_t n)
{
    for (uint32_t i = 0; i < 3 && n == 6; i++) {
        if (w[2] == LOCAL_SIZE) size[i] = w[3 + i];
        if (w[2] == LOCAL_SIZE_ID) {
            size_is_id[i] = id_of(w[3 + i])->spec != 0;
            size[i] = size_is_id[i] ? id_of(w[3 + i])->spec - 1 : definition(w[3 + i])[3];
        }
    }
}

/* What is in no storage buffer has root 0. */
static void touch(uint32_t pointer, uint32_t access) { ids[id_of(pointer)->root].access |= access; }

/* What code does with pointers into storage buffers. */
static void read_code(const uint32_t *w, uint32_t n)
{
    uint32_t op = op_of(w);
    bool load = op == OP_LOAD || op == OP_ATOMIC_LOAD || op == OP_COOPERATIVE_LOAD || op == OP_TENSOR_LOAD;
    bool store = op == OP_STORE || op == OP_ATOMIC_STORE || op == OP_COOPERATIVE_STORE || op == OP_TENSOR_STORE;
    bool exchange = (op > OP_ATOMIC_STORE && op <= OP_ATOMIC_LAST) || op == OP_ATOMIC_FLOAT_ADD;
    if ((op >= OP_ACCESS_CHAIN && op <= OP_PTR_CHAIN) || op == OP_COPY_OBJECT) id_of(w[2])->root = id_of(w[3])->root;
    if (load || exchange) touch(w[3], READS);
    if (exchange) touch(w[3], WRITES);
    if (store || op == OP_COPY_MEMORY) touch(w[1], WRITES);
    if (op == OP_COPY_MEMORY) touch(w[2], READS);
    for (uint32_t i = 4; i < n && op == OP_CALL; i++) touch(w[i], READS | WRITES);
}

static bool defines(uint32_t op)
{
    bool type = op >= OP_TYPE_BOOL && op <= OP_TYPE_POINTER, constant = op >= OP_CONSTANT && op <= OP_SPEC_COMPOSITE;
    return type || constant || op == OP_VARIABLE;
}

static void read_instruction(const uint32_t *w, uint32_t n, bool *is_size)
{
    uint32_t op = op_of(w);
    if (op == OP_CAPABILITY) printf("capability %u\n", w[1]);
    if (op == OP_EXTENSION) printf("extension %s\n", (const char *)(w + 1));
    if (op == OP_NAME && !id_of(w[1])->name) id_of(w[1])->name = (const char *)(w + 2);    /* later ones: of copies */
    if (op == OP_MEMBER_NAME) member_of(w[1], w[2])->name = (const char *)(w + 3);
    if (op == OP_MEMBER_DECORATE && n > 4 && w[3] == OFFSET) member_of(w[1], w[2])->offset = w[4];
    if (op == OP_MEMBER_DECORATE && n > 4 && w[3] == MATRIX_STRIDE) member_of(w[1], w[2])->matrix_stride = w[4];
    if (op == OP_DECORATE) read_decoration(w, n);
    if (op == OP_DECORATE && n == 4 && w[2] == BUILT_IN && w[3] == WORKGROUP_SIZE) is_size[w[1]] = true;
    if (op == OP_EXECUTION_MODE) read_execution_mode(w, n);
    if (defines(op)) id_of(op >= OP_CONSTANT ? w[2] : w[1])->at = w;
    if (op == OP_SPEC_COMPOSITE) read_workgroup_size(w, is_size);
    if (op == OP_VARIABLE) id_of(w[2])->root = w[3] == STORAGE_BUFFER ? w[2] : 0;
    read_code(w, n);
}

static void read_module(const uint32_t *words, size_t count)
{
    bool *is_size = calloc(bound, sizeof *is_size);
    if (!is_size) fail("out of memory");
    for (size_t at = 5, n; at < count; at += n) {
        n = length_of(words + at);
        if (!n || n > count - at) fail("it is cut off");
        read_instruction(words + at, (uint32_t)n, is_size);
    }
    for (size_t at = 5; at < count; at += length_of(words + at))       /* their constants come later */
        if (op_of(words + at) == OP_EXECUTION_MODE_ID) read_execution_mode(words + at, length_of(words + at));
    free(is_size);
}

/* ---- types as C ---- */

/* A declarator grows from the name outwards; what comes in front of it is known at the end. */
struct declaration { char base[2048], name[256]; uint32_t size; };

static int name_length(const char *name)
{
    size_t n = strlen(name);
    return (int)(n && name[n - 1] == '_' ? n - 1 : n);
}

static void add(char *text, size_t room, const char *format, ...)
{
    va_list arguments;
    size_t used = strlen(text), n;
    va_start(arguments, format);
    n = (size_t)vsnprintf(text + used, room - used, format, arguments);
    va_end(arguments);
    if (n >= room - used) fail("a declaration is too long: %s", text);
}

static void scalar_type(struct declaration *d, const uint32_t *type)
{
    bool is_float = op_of(type) == OP_TYPE_FLOAT;
    if (!is_float && op_of(type) != OP_TYPE_INT) fail("%s has a type that C has not (opcode %u)", d->name, op_of(type));
    d->size = type[2] / 8;
    if (is_float && type[2] >= 32) add(d->base, sizeof d->base, type[2] == 64 ? "double" : "float");
    else add(d->base, sizeof d->base, !is_float && type[3] ? "int%u_t" : "uint%u_t", type[2]);
}

static void declare(struct declaration *d, uint32_t type_id, uint32_t stride, uint32_t matrix_stride);

/* The members of a struct with what lies between them, as one text. */
static void struct_type(struct declaration *d, uint32_t type_id, uint32_t stride)
{
    const uint32_t *type = definition(type_id);
    uint32_t end = 0;
    add(d->base, sizeof d->base, "struct { ");
    for (uint32_t i = 0; i + 2 < length_of(type); i++) {
        const struct member *m = member_of(type_id, i);
        struct declaration inner = { .base = "" };
        add(inner.name, sizeof inner.name, "%.*s", name_length(m->name), m->name);
        declare(&inner, type[2 + i], 0, m->matrix_stride);
        if (m->offset > end) add(d->base, sizeof d->base, "uint8_t pad_%u[%u]; ", end, m->offset - end);
        add(d->base, sizeof d->base, "%s %s; ", inner.base, inner.name);
        end = m->offset + inner.size;
    }
    if (stride > end) add(d->base, sizeof d->base, "uint8_t pad_%u[%u]; ", end, stride - end);
    add(d->base, sizeof d->base, "}");
    d->size = stride > end ? stride : end;
}

/* stride: from one to the next, in the array that it is an element of; 0: in none. */
static void declare(struct declaration *d, uint32_t type_id, uint32_t stride, uint32_t matrix_stride)
{
    const uint32_t *type = definition(type_id), op = op_of(type);
    if (op == OP_TYPE_ARRAY) {
        const uint32_t *count = definition(type[3]), each = id_of(type_id)->stride;
        if (op_of(count) != OP_CONSTANT) fail("the length of %s is not a plain constant", d->name);
        add(d->name, sizeof d->name, "[%u]", count[3]);
        declare(d, type[2], each, matrix_stride);
        if (d->size > each) fail("the elements of %s overlap", d->name);
        if (d->size < each) fail("the elements of %s of %u bytes lie %u apart", d->name, d->size, each);
        d->size = each * count[3];
    } else if (op == OP_TYPE_VECTOR || op == OP_TYPE_MATRIX) {
        uint32_t apart = op == OP_TYPE_MATRIX ? matrix_stride : 0, component;
        if (apart) add(d->name, sizeof d->name, "[%u]", type[3]);
        const uint32_t *vector = apart ? definition(type[2]) : type;
        scalar_type(d, definition(vector[2]));
        component = d->size;
        d->size = apart ? apart : stride ? stride : component * vector[3];
        add(d->name, sizeof d->name, "[%u]", d->size / component);
        if (apart) d->size *= type[3];
    } else if (op == OP_TYPE_STRUCT) struct_type(d, type_id, stride);
    else scalar_type(d, type);
}

/* ---- printing ---- */

static void print_size(void)
{
    printf("size");
    for (int i = 0; i < 3; i++) printf(size_is_id[i] ? " id%u" : " %u", size[i]);
    putchar('\n');
}

static void print_constant(uint32_t spec)
{
    bool found = false;
    for (uint32_t i = 1; i < bound; i++) {
        const uint32_t *w = ids[i].at;
        if (ids[i].spec != spec + 1 || !w || op_of(w) < OP_SPEC_TRUE || op_of(w) > OP_SPEC_CONSTANT || found) continue;
        struct declaration d = { .base = "" };
        if (op_of(w) == OP_SPEC_CONSTANT) scalar_type(&d, definition(w[1]));
        else add(d.base, sizeof d.base, "uint32_t");
        if (op_of(w) == OP_SPEC_CONSTANT && d.size != 4) fail("constant %u is not of 32 bits", spec);
        if (ids[i].name && *ids[i].name) add(d.name, sizeof d.name, "%s", ids[i].name);
        else if (size_is_id[0] && size[0] == spec) add(d.name, sizeof d.name, "threads");
        else fail("constant %u has no name", spec);
        for (char *c = d.name; *c; c++) *c = (char)tolower(*c);
        printf("constant %u %s %s\n", spec, d.base, d.name);
        found = true;
    }
}

static void print_push(uint32_t type_id)
{
    const uint32_t *type = definition(type_id);
    uint32_t end = 0;
    struct { uint32_t offset, size; struct declaration d; } *m = calloc(length_of(type), sizeof *m);
    if (!m) fail("out of memory");
    for (uint32_t i = 0; i + 2 < length_of(type); i++) {
        const struct member *member = member_of(type_id, i);
        if (!member->name || !*member->name) fail("a push constant has no name: compile with names");
        add(m[i].d.name, sizeof m[i].d.name, "%.*s", name_length(member->name), member->name);
        m[i].offset = member->offset;
        declare(&m[i].d, type[2 + i], 0, member->matrix_stride);
        if (m[i].offset + m[i].d.size > end) end = m[i].offset + m[i].d.size;
    }
    printf("push %s %u\n", id_of(type_id)->name, (end + 3) & ~3u);
    for (uint32_t i = 0; i + 2 < length_of(type); i++)
        printf("member %u %u %.*s %s %s\n", m[i].offset, m[i].d.size, (int)strcspn(m[i].d.name, "["), m[i].d.name,
               m[i].d.base, m[i].d.name);
    free(m);
}

static bool is_variable(uint32_t id, uint32_t storage)
{
    return ids[id].at && op_of(ids[id].at) == OP_VARIABLE && ids[id].at[3] == storage;
}

/* What a pointer's type points to. */
static uint32_t pointee(uint32_t variable) { return definition(ids[variable].at[1])[3]; }

/* The blocks at one binding are views of the same memory: a_words and a_fours are both of a. */
static void print_binding(uint32_t number)
{
    static const char *const texts[] = { "none", "r", "w", "rw" };
    char name[128] = "", views[512] = "";
    uint32_t access = 0, type;
    for (uint32_t i = 1; i < bound; i++) {
        if (!is_variable(i, STORAGE_BUFFER) || ids[i].binding != number + 1) continue;
        type = pointee(i);
        if (op_of(definition(type)) != OP_TYPE_STRUCT) fail("binding %u is an array of buffers", number);
        const char *block = id_of(type)->name, *end = block ? strrchr(block, '_') : NULL;
        if (!end || end == block) fail("block \"%s\" of binding %u is not NAME_view", block ? block : "", number);
        if (*name && (strlen(name) != (size_t)(end - block) || strncmp(name, block, strlen(name))))
            fail("binding %u is called %s, and in %s otherwise", number, name, block);
        snprintf(name, sizeof name, "%.*s", (int)(end - block), block);
        add(views, sizeof views, "%s%s", *views ? "," : "", end + 1);
        access |= ids[i].access;
    }
    if (*name) printf("binding %u %s %s %s\n", number, name, texts[access], views);
}

static void print_interface(void)
{
    print_size();
    for (uint32_t i = 1; i < bound; i++) {
        if (ids[i].spec > MOST_CONSTANTS) fail("the number of constant %u is too high", ids[i].spec - 1);
        if (ids[i].binding > MOST_BINDINGS) fail("the number of binding %u is too high", ids[i].binding - 1);
    }
    for (uint32_t spec = 0; spec < MOST_CONSTANTS; spec++) print_constant(spec);
    for (uint32_t i = 1; i < bound; i++) if (is_variable(i, PUSH_CONSTANT)) print_push(pointee(i));
    for (uint32_t number = 0; number < MOST_BINDINGS; number++) print_binding(number);
}

static uint32_t *read_file(const char *path, size_t *count)
{
    FILE *f = fopen(path, "rb");
    size_t room = 1 << 24;
    uint32_t *words = malloc(room);
    if (!f || !words) fail("cannot be read");
    *count = fread(words, 4, room / 4, f);
    if (*count == room / 4 || ferror(f)) fail("cannot be read");
    fclose(f);
    return words;
}

int main(int argc, char **argv)
{
    size_t count;
    if (argc != 2) { fputs("usage: reflect FILE.spv\n", stderr); return 2; }
    file = argv[1];
    uint32_t *words = read_file(file, &count);
    if (count < 5 || words[0] != 0x07230203) fail("not SPIR-V");
    bound = words[3];
    if (bound > 1 << 20 || !(ids = calloc(bound, sizeof *ids))) fail("out of memory");
    read_module(words, count);
    print_interface();
    for (uint32_t i = 0; i < bound; i++) free(ids[i].members);
    free(ids);
    free(words);
    return 0;
}
