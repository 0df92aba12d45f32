/* Memory that the ranks of one host share, and that each rank's device has imported.    SPDX-License-Identifier: MIT */
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "mlxvk.h"

namespace mlxvk_mlx {

struct Shared {
  enum : size_t {
    CONTROL = 1 << 16,
    SLOTS = 2, SLOT = 8 << 20,                             // a rank's parts of collectives, in turn
    PACKETS = 4, PACKET = 2 << 20,                         // what it sends to a neighbour, in turn; each way
  };
  enum { MOST = 64 };                                      // ranks

  /* Counters of one rank, which it alone writes. At the memory's start. */
  struct alignas(64) Counter { std::atomic<uint64_t> value; };
  struct Rank {
    Counter written;                                       // parts of collectives in its slots
    Counter recorded;                                      // parts that its device exchanges itself
    Counter sent[2], taken[2];                             // packets, by way: 0 to the right and from the left, 1 back
    Counter leaving, broken;                               // its program ends; a collective could not be recorded
  };
  static_assert(sizeof(Rank) * MOST <= CONTROL && std::atomic<uint64_t>::is_always_lock_free);

  /* What mlxvk_exchange says of rank `of`. */
  enum Word { PUT, STOP, MISSED };
  std::atomic<uint32_t>& word(int of, Word w) const;

  int rank = 0, size = 0, file = -1;
  uint64_t operations = 0;                                 // bits that all ranks' devices have
  bool exchanges = false;                                  // do the devices exchange small parts themselves?
  Rank* ranks = nullptr;
  mlxvk_buffer buffer{};                                   // all of it, as the device sees it

  /* Offsets: where rank `of` has its part of collective `number`, and what it sends on that way. */
  size_t slot(int of, uint64_t number) const;
  size_t packet(int of, int way, uint64_t number) const;
  size_t exchanged() const;                                // mlxvk_exchange's memory
  bool is_gone(int of) const;
};

/* What a rank's device can do. apart: not 0 where it may exchange parts with devices of other ranks that say another
 * number. */
struct Abilities { bool able; uint64_t operations, apart; };

/* Blocks until all ranks have called it, or some time; null where they are not all of this host, or one is not able. */
Shared* meet_ranks(int rank, int size, const Abilities& own);

}  // namespace mlxvk_mlx
