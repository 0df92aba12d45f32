/* MLX's Python type and exceptions: see bridge.h.                                  SPDX-License-Identifier: MIT
 *
 * np.array(x), memoryview(x) and bytes(x) of an array that is not evaluated yet evaluate it in the type's buffer
 * function, which C code of the interpreter calls: an exception that leaves it there ends the process. So another
 * function stands in its place and turns it into Python's own. NumPy takes no error of that function for an answer and
 * asks for __array__ next, so the type gets one, which raises it again.
 *
 * And where metal::is_available() says yes, MLX takes every array for one of Apple's to other libraries (DLPack), which none
 * of them takes here: unless they ask for a device, they get the CPU's, as without the bridge. And mx.asarray(x, copy=False)
 * asks for the caller's memory itself, which the allocator cannot tell from asking for it if possible: it is told.
 *
 * And a layer of mlx.nn keeps its parts as a dictionary's items: x.part is looked for as an attribute, in vain, for which
 * Python makes an exception with a text, and then by a function in Python, a few hundred times a token. The same is done
 * here by one function.
 *
 * The interpreter is the process's, its functions are looked up: nothing here is compiled or linked against Python. */
#include <dlfcn.h>

#include <cstdlib>
#include <new>

#include "bridge.h"

namespace mlxvk_mlx {

namespace {

struct Object;                                             // PyObject
struct Method {                                            // PyMethodDef
  const char* name;
  Object* (*call)(Object*, Object*, Object*);
  int flags;
  const char* doc;
};

/* Of Python's stable interface; the numbers are its, too. */
enum { SLOT_GETBUFFER = 1, SLOT_GETATTRO = 58, VARARGS_KEYWORDS = 3, PROGRAM = 257, EXPRESSION = 258 };

template <class T> bool find(T& to, const char* name) { return (to = reinterpret_cast<T>(dlsym(RTLD_DEFAULT, name))); }

struct Interpreter {
  int (*holds_lock)();                                     // at the end of the interpreter it says yes in every thread
  int (*initialized)();
  void* (*this_thread)();
  void* (*current)();                                      // the thread that holds it, as Python sees it, or null
  void* (*leave)();
  void (*enter)(void*);
  void* (*slot)(Object*, int);
  Object* (*type_of)(Object*);
  Object* (*attribute)(Object*, const char*);
  int (*set_attribute)(Object*, const char*, Object*);
  Object* (*call)(Object*, const char*, const char*, ...);
  Object* (*import)(const char*);
  Object* (*memory_view)(Object*);
  Object* (*method)(Object*, Method*);
  long (*length)(Object*);
  Object* (*item)(Object*, long);
  long (*number)(Object*);
  const char* (*text)(Object*);
  void (*release)(Object*);
  void (*clear_error)();
  void (*set_error)(Object*, const char*);
  Object* (*compile)(const char*, const char*, int);
  Object* (*evaluate)(Object*, Object*, Object*);
  Object* (*dictionary)();
  Object* (*value_of)(Object*, const char*);
  Object* (*call_with)(Object*, Object*, Object*);
  Object* (*function)(Method*, Object*, Object*);
  Object* object_type;
  Object* false_object;
  Object **runtime_error, **value_error, **memory_error;
  bool there;

  Interpreter() {
    there = find(holds_lock, "PyGILState_Check") && find(initialized, "Py_IsInitialized") &&
            find(this_thread, "PyGILState_GetThisThreadState") &&
            (find(current, "PyThreadState_GetUnchecked") || find(current, "_PyThreadState_UncheckedGet")) &&
            find(leave, "PyEval_SaveThread") && find(enter, "PyEval_RestoreThread") &&
            find(slot, "PyType_GetSlot") && find(type_of, "PyObject_Type") &&
            find(attribute, "PyObject_GetAttrString") && find(set_attribute, "PyObject_SetAttrString") &&
            find(call, "PyObject_CallMethod") && find(import, "PyImport_ImportModule") &&
            find(memory_view, "PyMemoryView_FromObject") && find(method, "PyDescr_NewMethod") &&
            find(length, "PySequence_Size") && find(item, "PySequence_GetItem") && find(number, "PyLong_AsLong") &&
            find(text, "PyUnicode_AsUTF8") && find(release, "Py_DecRef") && find(clear_error, "PyErr_Clear") &&
            find(set_error, "PyErr_SetString") && find(compile, "Py_CompileString") &&
            find(evaluate, "PyEval_EvalCode") && find(dictionary, "PyDict_New") &&
            find(value_of, "PyDict_GetItemString") && find(call_with, "PyObject_Call") &&
            find(function, "PyCFunction_NewEx") && find(object_type, "PyBaseObject_Type") &&
            find(false_object, "_Py_FalseStruct") &&
            find(runtime_error, "PyExc_RuntimeError") && find(value_error, "PyExc_ValueError") &&
            find(memory_error, "PyExc_MemoryError");
  }
};
const Interpreter& python() { static const Interpreter the; return the; }

using GetBuffer = int (*)(Object*, void*, int);
GetBuffer own_getbuffer;                                   // MLX's

int refuse(void* view, Object* type, const char* what) {
  python().set_error(type, what);
  static_cast<Object**>(view)[1] = nullptr;                // Py_buffer's obj: there is nothing to release
  return -1;
}

int getbuffer(Object* self, void* view, int flags) {
  try {
    return own_getbuffer(self, view, flags);
  } catch (const std::bad_alloc& e) {
    return refuse(view, *python().memory_error, e.what());
  } catch (const std::invalid_argument& e) {
    return refuse(view, *python().value_error, e.what());
  } catch (const std::exception& e) {
    return refuse(view, *python().runtime_error, e.what());
  } catch (...) {
    return refuse(view, *python().runtime_error, "[mlxvk] an exception of an unknown kind");
  }
}

/* x.__array__(...): what NumPy would have made of the buffer; it converts to the dtype that was asked for itself. */
Object* as_numpy(Object* self, Object*, Object*) {
  auto& py = python();
  Object *view = py.memory_view(self), *result = nullptr;
  if (!view) return nullptr;
  if (Object* numpy = py.import("numpy")) {
    result = py.call(numpy, "asarray", "O", view);
    py.release(numpy);
  }
  py.release(view);
  return result;
}

bool is_text(Object* type, const char* name, const char* want) {
  auto& py = python();
  Object* value = py.attribute(type, name);
  const char* text = value ? py.text(value) : nullptr;
  const bool same = text && !std::strcmp(text, want);
  if (!text) py.clear_error();
  if (value) py.release(value);
  return same;
}

/* mlx.core.array, also while the module is still being made. A reference of the caller's, or null. */
Object* array_type() {
  auto& py = python();
  Object *all = py.call(py.object_type, "__subclasses__", nullptr), *found = nullptr;
  for (long i = 0, n = all ? py.length(all) : 0; i < n && !found; i++) {
    Object* type = py.item(all, i);
    if (is_text(type, "__name__", "array") && is_text(type, "__module__", "mlx.core")) found = type;
    else py.release(type);
  }
  if (all) py.release(all);
  else py.clear_error();
  return found;
}

long size_of_type(Object* type) {
  auto& py = python();
  Object *meta = py.type_of(type), *size = py.attribute(meta, "__basicsize__");
  const long bytes = size ? py.number(size) : 0;
  if (size) py.release(size);
  else py.clear_error();
  py.release(meta);
  return bytes;
}

/* The type's function pointers are in the type object itself: the one word that holds this one, or null. */
template <class F> F* place_in(Object* type, F function) {
  auto* words = reinterpret_cast<F*>(type);
  F* place = nullptr;
  int found = 0;
  for (size_t i = 0; function && i < size_of_type(type) / sizeof *words; i++)
    if (words[i] == function) { place = &words[i]; found++; }
  return found == 1 ? place : nullptr;
}

void replace_getbuffer(Object* type) {
  auto& py = python();
  own_getbuffer = reinterpret_cast<GetBuffer>(py.slot(type, SLOT_GETBUFFER));
  GetBuffer* place = place_in(type, own_getbuffer);
  if (!place) return;
  static Method method{"__array__", as_numpy, VARARGS_KEYWORDS, nullptr};
  *place = getbuffer;
  if (Object* descriptor = py.method(type, &method)) {
    if (py.set_attribute(type, method.name, descriptor)) py.clear_error();
    py.release(descriptor);
  } else {
    py.clear_error();
  }
}

/* ---- attributes of mlx.nn's layers ---- */

using GetAttribute = Object* (*)(Object*, Object*);
GetAttribute own_getattribute;                             // of types with __getattr__: Python's

struct {
  Object* (*generic)(Object*, Object*, Object*, int);      // the last one: no exception where there is none
  Object* (*of_type)(Object*, Object*);
  Object* (*type)(Object*);
  Object* (*item)(Object*, Object*);
  Object* (*error)();
  Object* (*text)(const char*);
  void (*keep)(Object*);
  Object* (*tuple)(long, ...);
  Object* (*call)(Object*, ...);
  Object* (*of_instance)(Object*, void*);
  Object *none, *get, *getattr, *dict_get;
} own;

/* Types whose attributes are looked up so: as a type's own, then by Module.__getattr__, which asks dict.get. Python forgets
 * what is done to a type here where somebody gives it, or a type that it is from, another such function. */
const char types_for_it[] =
    "def find(sys):\n"
    "    base = getattr(sys.modules.get('mlx.nn.layers.base'), 'Module', None)\n"
    "    if not isinstance(base, type) or not issubclass(base, dict) or 't' in getattr(sys, 'abiflags', ''): return []\n"
    "    own = vars(base).get('__getattr__')\n"
    "    code = getattr(own, '__code__', None)\n"
    "    if getattr(code, 'co_names', 0) != ('get', 'super', 'Module', '__getattribute__'): return []\n"
    "    if code.co_varnames != ('self', 'key', 'value') or [c for c in code.co_consts if c is not None]: return []\n"
    "    def of(t, name): return next((vars(c)[name] for c in t.__mro__ if name in vars(c)), None)\n"
    "    found, rest = [], [base]\n"
    "    while rest:\n"
    "        t = rest.pop()\n"
    "        rest += type.__subclasses__(t)\n"
    "        if (type(t) is type and of(t, '__getattr__') is own and of(t, 'get') is vars(dict)['get'] and\n"
    "                of(t, '__getattribute__') in (vars(dict)['__getattribute__'], vars(object)['__getattribute__'])):\n"
    "            found.append(t)\n"
    "    return found\n";

/* Is x.get(name) dict's own method, for an object of that type? */
bool gets_as_dict(Object* self, Object* type) {
  if (own.of_type(type, own.get) != own.dict_get) return false;
  Object* attributes = own.of_instance(self, nullptr);
  const bool hidden = attributes && own.item(attributes, own.get);
  if (attributes) python().release(attributes);
  return attributes && !hidden && !own.error();
}

/* As Python's: first this, then that; what a property does in vain it does as often. */
Object* attribute_of_layer(Object* self, Object* name) {
  Object* found = own.generic(self, name, nullptr, 1);
  if (found || own.error()) return found;
  Object* type = own.type(self);                           // a reference, which self has, too
  python().release(type);
  if (gets_as_dict(self, type)) {
    found = own.item(self, name);
    if (found && found != own.none) { own.keep(found); return found; }
  }
  Object* by = own.error() ? nullptr : own.of_type(type, own.getattr);
  if (!by) return own.error() ? nullptr : own_getattribute(self, name);
  own.keep(by);
  found = own.call(by, self, name, nullptr);               // which says what is the matter
  python().release(by);
  return found;
}

bool find_for_layers() {
  auto& py = python();
  Object* dict_type = nullptr;
  if (!find(own.generic, "_PyObject_GenericGetAttrWithDict") || !find(own.of_type, "_PyType_Lookup") ||
      !find(own.type, "PyObject_Type") || !find(own.item, "PyDict_GetItemWithError") || !find(own.error, "PyErr_Occurred") ||
      !find(own.text, "PyUnicode_InternFromString") || !find(own.keep, "Py_IncRef") || !find(own.none, "_Py_NoneStruct") ||
      !find(own.tuple, "PyTuple_Pack") || !find(own.call, "PyObject_CallFunctionObjArgs") ||
      !find(own.of_instance, "PyObject_GenericGetDict") ||
      !find(dict_type, "PyDict_Type")) return false;
  own.get = own.text("get");
  own.getattr = own.text("__getattr__");
  own.dict_get = own.get ? own.of_type(dict_type, own.get) : nullptr;
  if (!own.dict_get) py.clear_error();
  return own.dict_get && own.getattr;
}

/* All such types that there are. The lock is held. */
void quicken_layers() {
  static const bool possible = find_for_layers();
  if (!possible || own.error()) return;
  auto& py = python();
  Object *code = py.compile(types_for_it, "mlxvk", PROGRAM), *names = py.dictionary(), *sys = py.import("sys");
  Object *done = code && names && sys ? py.evaluate(code, names, names) : nullptr, *types = nullptr;
  Object* arguments = done ? own.tuple(1, sys) : nullptr;
  if (arguments) types = py.call_with(py.value_of(names, "find"), arguments, nullptr);
  for (long i = 0, n = types ? py.length(types) : 0; i < n; i++) {
    Object* type = py.item(types, i);
    const auto its = reinterpret_cast<GetAttribute>(py.slot(type, SLOT_GETATTRO));
    if (its != attribute_of_layer && (!own_getattribute || its == own_getattribute))
      if (auto* place = place_in(type, its)) {
        own_getattribute = its;
        *place = attribute_of_layer;
      }
    py.release(type);
  }
  if (!types) py.clear_error();
  for (Object* o : {code, names, sys, done, arguments, types})
    if (o) py.release(o);
}

/* An expression: a function of the type. Older versions' __dlpack__ takes no device, and gives the CPU's memory. */
#if MLX_VERSION_NUMERIC >= 32003
const char dlpack_of_cpu[] =
    "lambda array, own: [setattr(array, '__dlpack_device__', lambda self: (1, 0)),\n"
    "    setattr(array, '__dlpack__', lambda self, *, dl_device=None, **more: own(self, dl_device=dl_device or (1, 0), **more))]";
#else
const char dlpack_of_cpu[] = "lambda array, own: setattr(array, '__dlpack_device__', lambda self: (1, 0))";
#endif

void replace_dlpack(Object* type) {
  auto& py = python();
  Object *own = py.attribute(type, "__dlpack__"), *code = py.compile(dlpack_of_cpu, "mlxvk", EXPRESSION);
  Object *names = py.dictionary(), *function = code && names ? py.evaluate(code, names, names) : nullptr;
  Object* done = own && function ? py.call(function, "__call__", "OO", type, own) : nullptr;
  if (!done) py.clear_error();
  for (Object* o : {own, code, names, function, done})
    if (o) py.release(o);
}

#if MLX_VERSION_NUMERIC >= 32003
Object* own_asarray;                                       // MLX's

Object* asarray(Object*, Object* arguments, Object* named) {
  auto& py = python();
  share_next(named && py.value_of(named, "copy") == py.false_object);
  Object* result = py.call_with(own_asarray, arguments, named);
  share_next(false);
  return result;
}

/* False where the module has none yet. */
bool replace_asarray() {
  static Method method{"asarray", asarray, VARARGS_KEYWORDS, nullptr};
  auto& py = python();
  Object *modules = nullptr, *module = nullptr, *doc = nullptr, *function = nullptr;
  if (Object* sys = py.import("sys")) {
    modules = py.attribute(sys, "modules");
    py.release(sys);
  }
  if (modules) module = py.value_of(modules, "mlx.core");
  if (module) own_asarray = py.attribute(module, method.name);
  if (own_asarray) doc = py.attribute(own_asarray, "__doc__");
  if (doc) method.doc = py.text(doc);
  if (own_asarray) function = py.function(&method, nullptr, nullptr);
  if (!function || py.set_attribute(module, method.name, function)) py.clear_error();
  for (Object* o : {modules, function})                    // the others are kept
    if (o) py.release(o);
  return function;
}
#else
bool replace_asarray() { return true; }
#endif

/* Before Python's end: a thread that wants its lock then, to let go of a caller's memory, is ended where it is. Before it
 * forks: a child would have mlxvk's locks as the thread has them then. (An expression: a function of these two.) */
const char when_python_goes[] =
    "lambda close, join: [__import__('atexit').register(close), __import__('os').register_at_fork(before=join)]";

Object* close_from_python(Object*, Object*, Object*) {
  close_walk();
  return python().dictionary();                            // anything
}

Object* join_from_python(Object*, Object*, Object*) {
  join_walk();
  return python().dictionary();
}

void join_when_python_goes() {
  static Method closing{"mlxvk_close", close_from_python, VARARGS_KEYWORDS, nullptr};
  static Method joining{"mlxvk_join", join_from_python, VARARGS_KEYWORDS, nullptr};
  auto& py = python();
  Object *close = py.function(&closing, nullptr, nullptr), *join = py.function(&joining, nullptr, nullptr);
  Object *code = py.compile(when_python_goes, "mlxvk", EXPRESSION), *names = py.dictionary();
  Object* function = code && names ? py.evaluate(code, names, names) : nullptr;
  Object* done = function && close && join ? py.call(function, "__call__", "OO", close, join) : nullptr;
  if (!done) py.clear_error();
  for (Object* o : {close, join, code, names, function, done})
    if (o) py.release(o);
}

}  // namespace

bool has_python() { return python().there; }

WithoutPython::WithoutPython() {
  auto& py = python();
  if (!py.there || !py.initialized()) return;
  const void* own = py.this_thread();
  if (own && py.current() == own) state_ = py.leave();
}

WithoutPython::~WithoutPython() { if (state_) python().enter(state_); }

/* Set when a large graph has been evaluated: layers are asked for their parts. */
static std::atomic<bool> layers_wanted{false};

void note_large_graph() {
  static std::atomic<unsigned> count{0};
  static const bool off = [] {
    const char* text = std::getenv("MLX_VK_MODULES");
    return text && *text && !std::atoi(text);
  }();
  const unsigned n = ++count;
  if (!off && (!(n & (n - 1)) || n % 256 == 0)) layers_wanted = true;   // there may be new ones
}

bool guard_python() {
  if (layers_wanted.load(std::memory_order_relaxed) && !records() && python().there && python().initialized() &&
      python().this_thread() && python().holds_lock() && layers_wanted.exchange(false))
    quicken_layers();
  enum { TRIES = 1000 };                                   // then it is a process without MLX's module
  static std::atomic<int> tries{0};
  static std::atomic<bool> busy{false};
  static bool of_type = false;
  if (tries.load(std::memory_order_relaxed) >= TRIES || !python().there || !python().holds_lock() || busy.exchange(true))
    return false;
  tries++;
  if (Object* type = array_type()) {
    if (!of_type) {
      use_pool("/mlx/core.");                              // MLX's module
      join_when_python_goes();
      replace_getbuffer(type);
      replace_dlpack(type);
    }
    of_type = true;
    if (replace_asarray()) tries = TRIES;
    python().release(type);
  }
  busy = false;
  return tries >= TRIES;
}

}  // namespace mlxvk_mlx
