#include "kvcache/transport/note_box.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "kvcache/transport/pool_socket.h"

namespace aisp {

struct NoteBox::Memory {
  struct Note {
    uint64_t bytes;
    char text[kMostBytes];
  };
  alignas(64) std::atomic<uint64_t> put;
  alignas(64) std::atomic<uint64_t> taken;
  alignas(64) Note notes[kNotes];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

Result<NoteBox> NoteBox::Create() {
  UniqueFd fd(memfd_create("aisp-kv-notes", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), sizeof(Memory)) != 0)
    return tl::unexpected(SocketError("making a memfd for notes"));
  AISP_RETURN_IF_ERROR(SealPool(fd.get()));
  return Open(std::move(fd));
}

Result<NoteBox> NoteBox::Open(UniqueFd fd) {
  AISP_RETURN_IF_ERROR(CheckSealed(fd));
  AISP_ASSIGN_OR_RETURN(PoolMapping mapping,
                        PoolMapping::Map(fd.get(), sizeof(Memory), MappingAccess::kReadWrite));
  return NoteBox(std::move(fd), std::move(mapping));
}

NoteBox::Memory& NoteBox::memory() const {
  return *reinterpret_cast<Memory*>(mapping_.bytes().data());
}

bool NoteBox::Put(std::string_view note) {
  Memory& m = memory();
  if (note.size() > kMostBytes || count_ - m.taken.load(std::memory_order_acquire) >= kNotes)
    return false;
  Memory::Note& to = m.notes[count_ % kNotes];
  to.bytes = note.size();
  std::memcpy(to.text, note.data(), note.size());
  m.put.store(++count_, std::memory_order_release);
  return true;
}

bool NoteBox::Filled() const { return memory().put.load(std::memory_order_relaxed) != count_; }

bool NoteBox::Take(std::string* note) {
  Memory& m = memory();
  const uint64_t put = m.put.load(std::memory_order_acquire);
  if (put == count_) return false;
  if (put - count_ > kNotes) {  // not a writer that keeps the rules: begin anew
    m.taken.store(count_ = put, std::memory_order_release);
    return false;
  }
  const Memory::Note& from = m.notes[count_ % kNotes];
  const uint64_t bytes = from.bytes;
  const bool fits = bytes <= kMostBytes;
  if (fits) note->assign(from.text, bytes);
  m.taken.store(++count_, std::memory_order_release);
  return fits;
}

}  // namespace aisp
