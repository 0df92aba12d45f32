/* Memory that the ranks of one host share: see bridge.h.                                   SPDX-License-Identifier: MIT
 *
 * Rank 0 makes it and hands it out through a socket whose name is a hash of the ranks' addresses, so that nothing is
 * left behind when a rank is killed. Either all ranks have it or none: each says what its device can do, rank 0
 * decides, each says whether it could map and import the memory, and rank 0 decides again.
 *
 * Each rank has a lock on its own byte of the memory's file as long as it lives: who waits for a rank looks whether it
 * is still held. (A process's number says nothing in another container, and a killed process keeps it until somebody
 * asks.) */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>

#include "bridge.h"
#include "shared.h"

namespace mlxvk_mlx {

using Clock = std::chrono::steady_clock;

/* What the ranks say to each other. */
struct Hello { uint32_t version; int32_t rank, size; uint32_t able; uint64_t operations, apart; };
struct Verdict { uint64_t able, operations, exchanges; };
enum : uint32_t { VERSION = 0x4d565202 };                   // of all that is in the memory, too
enum { PATIENCE = 60 };                                    // seconds: as long as MLX's ring tries to connect, and more

/* A descriptor that is closed. */
class Descriptor {
 public:
  Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept { std::swap(fd_, other.fd_); return *this; }
  ~Descriptor() { if (fd_ >= 0) close(fd_); }
  operator int() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/* ---- the ranks' addresses ---- */

/* MLX's file of hosts: a list of lists of "address:port". Empty where they are not all of one host, and so many. */
static std::string one_host(int size) {
  const char* path = std::getenv("MLX_HOSTFILE");
  std::ifstream file(path ? path : "");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::string host;
  int lists = -1;
  for (char c : text) lists += c == '[';
  for (size_t at = text.find('"'); at != text.npos;) {
    const size_t end = text.find('"', at + 1);
    if (end == text.npos) return {};
    const std::string address = text.substr(at + 1, end - at - 1), of = address.substr(0, address.rfind(':'));
    if (of.empty() || (!host.empty() && of != host)) return {};
    host = of;
    at = text.find('"', end + 1);
  }
  return lists == size && !host.empty() ? text : std::string();
}

/* An abstract name: it goes with the process that has it, and is the network namespace's, as the ring's ports are. */
static socklen_t address_of(sockaddr_un& address, const std::string& ranks) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : ranks) hash = (hash ^ c) * 0x100000001b3u;
  address.sun_family = AF_UNIX;
  const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "mlxvk-ranks-%u-%016llx",
                                   unsigned(getuid()), (unsigned long long)hash);
  return socklen_t(offsetof(sockaddr_un, sun_path) + 1 + size_t(length));
}

static bool same_user(int fd) {
  ucred other{};
  socklen_t size = sizeof other;
  return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) && other.uid == getuid();
}

/* ---- messages, small enough to go and come whole ---- */

template <class T> bool say(int fd, const T& message) {
  return send(fd, &message, sizeof message, MSG_NOSIGNAL) == ssize_t(sizeof message);
}

template <class T> bool hear(int fd, T& message) {
  return recv(fd, &message, sizeof message, MSG_WAITALL) == ssize_t(sizeof message);
}

/* With a descriptor. */
static bool say_verdict(int fd, Verdict verdict, int memory) {
  if (memory < 0) return say(fd, verdict);
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof memory)]{};
  iovec data{&verdict, sizeof verdict};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof memory);
  std::memcpy(CMSG_DATA(part), &memory, sizeof memory);
  return sendmsg(fd, &message, MSG_NOSIGNAL) == ssize_t(sizeof verdict);
}

static bool hear_verdict(int fd, Verdict& verdict, Descriptor& memory) {
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))]{};
  iovec data{&verdict, sizeof verdict};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof room;
  if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL) != ssize_t(sizeof verdict)) return false;
  if (cmsghdr* part = CMSG_FIRSTHDR(&message); part && part->cmsg_type == SCM_RIGHTS) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(part), sizeof received);
    memory = Descriptor(received);
  }
  return verdict.able && memory >= 0;
}

/* ---- the memory ---- */

/* Where its parts are. */
size_t Shared::slot(int of, uint64_t number) const { return CONTROL + (size_t(of) * SLOTS + number % SLOTS) * SLOT; }
size_t Shared::packet(int of, int way, uint64_t number) const {
  const size_t boxes = CONTROL + size_t(size) * SLOTS * SLOT;
  return boxes + ((size_t(of) * 2 + size_t(way)) * PACKETS + number % PACKETS) * PACKET;
}
size_t Shared::exchanged() const { return packet(size, 0, 0); }
std::atomic<uint32_t>& Shared::word(int of, Word w) const {
  return reinterpret_cast<std::atomic<uint32_t>*>(reinterpret_cast<char*>(ranks) + exchanged())[of * 32 + w];
}
/* Of whole pages, of whatever size. */
static size_t bytes_for(const Shared& shared) {
  const size_t bytes = shared.exchanged() + 4 * mlxvk_exchange_words(shared.size);
  return (bytes + Shared::CONTROL - 1) / Shared::CONTROL * Shared::CONTROL;
}

static struct flock lock_of(int rank, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

/* Mapped where the device may import it from, imported, and this rank's lock taken. */
static bool open_memory(Shared& shared, Descriptor memory) {
  size_t align = 0;
  if (mlxvk_device_info_get_size(&align, device(), "memory_import_alignment") || !align) return false;
  const size_t bytes = bytes_for(shared);
  if (bytes % align) return false;
  char* room = static_cast<char*>(mmap(nullptr, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (room == MAP_FAILED) return false;
  room += (align - reinterpret_cast<uintptr_t>(room) % align) % align;
  if (mmap(room, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0) == MAP_FAILED) return false;
  struct flock lock = lock_of(shared.rank, F_WRLCK);
  if (fcntl(memory, F_SETLK, &lock)) return false;
  shared.ranks = reinterpret_cast<Shared::Rank*>(room);
  const auto address = reinterpret_cast<uintptr_t>(room);
  if (mlxvk_buffer_import(&shared.buffer, MLXVK_MEMORY_HOST, address, bytes, device())) return false;
  shared.file = memory.release();                          // open for good: closing it would give up the lock
  return true;
}

bool Shared::is_gone(int of) const {
  struct flock lock = lock_of(of, F_WRLCK);
  return of != rank && !fcntl(file, F_GETLK, &lock) && lock.l_type == F_UNLCK;
}

/* ---- meeting ---- */

/* Rank 0: all others; less where not all came in time, or somebody came who does not belong here. `all` becomes what
 * all can; its apart is 0 where two are not. */
static std::vector<Descriptor> meet_all(int size, const std::string& ranks, Hello& all) {
  std::vector<uint64_t> devices{all.apart};
  std::vector<Descriptor> others;
  sockaddr_un address{};
  const socklen_t length = address_of(address, ranks);
  const Descriptor listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listening, reinterpret_cast<sockaddr*>(&address), length) || listen(listening, size)) return others;
  std::vector<bool> seen(size_t(size), false);
  const auto end = Clock::now() + std::chrono::seconds(PATIENCE);
  while (int(others.size()) < size - 1) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd ready{listening, POLLIN, 0};
    if (left <= 0 || poll(&ready, 1, int(left)) <= 0) return others;
    Descriptor other = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    Hello hello{};
    const timeval patience{20, 0};
    setsockopt(other, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (!same_user(other) || !hear(other, hello) || hello.version != VERSION || hello.size != size || hello.rank < 1 ||
        hello.rank >= size || seen[size_t(hello.rank)])
      continue;
    seen[size_t(hello.rank)] = true;
    all.able &= hello.able;
    all.operations &= hello.operations;
    if (!hello.apart || std::find(devices.begin(), devices.end(), hello.apart) != devices.end()) all.apart = 0;
    devices.push_back(hello.apart);
    others.push_back(std::move(other));
  }
  return others;
}

static bool host_ranks(Shared& shared, const std::string& ranks, Hello own) {
  const auto others = meet_all(shared.size, ranks, own);
  Descriptor memory = memfd_create("mlxvk-ranks", MFD_CLOEXEC);
  bool able = own.able && int(others.size()) == shared.size - 1 && memory >= 0;
  able = able && !ftruncate(memory, off_t(bytes_for(shared)));
  for (auto& other : others) able = say_verdict(other, {able, own.operations, own.apart}, memory) && able;
  if (able) able = open_memory(shared, std::move(memory));
  char theirs = 0;
  for (auto& other : others) able = hear(other, theirs) && theirs && able;
  for (auto& other : others) say(other, char(able));
  shared.operations = own.operations;
  shared.exchanges = own.apart;
  return able;
}

static bool visit_rank_0(Shared& shared, const std::string& ranks, Hello own) {
  sockaddr_un address{};
  const socklen_t length = address_of(address, ranks);
  const Descriptor to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto end = Clock::now() + std::chrono::seconds(PATIENCE);
  while (connect(to, reinterpret_cast<sockaddr*>(&address), length)) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  Verdict verdict{};
  Descriptor memory;
  if (!same_user(to) || !say(to, own) || !hear_verdict(to, verdict, memory)) { say(to, char(0)); return false; }
  char all = open_memory(shared, std::move(memory));
  shared.operations = verdict.operations;
  shared.exchanges = verdict.exchanges;
  return say(to, all) && hear(to, all) && all;
}

Shared* meet_ranks(int rank, int size, const Abilities& own) {
  const std::string ranks = one_host(size);
  if (ranks.empty() || size > Shared::MOST) return nullptr;
  auto shared = std::make_unique<Shared>();
  shared->rank = rank;
  shared->size = size;
  const Hello hello{VERSION, rank, size, own.able, own.operations, own.apart};
  return (rank ? visit_rank_0 : host_ranks)(*shared, ranks, hello) ? shared.release() : nullptr;
}

}  // namespace mlxvk_mlx
