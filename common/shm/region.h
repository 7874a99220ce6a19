#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::shm {

// A mapped memfd. Owns mapping and descriptor. Movable. mmap is used here and nowhere else but in
// MappedFile.
class Region {
 public:
  // A new sealed memfd (no shrink, no grow) named `name`, mapped at a 2 MiB boundary; pages are not
  // touched. On huge pages where the administrator reserved enough free ones (vm.nr_hugepages) and
  // `bytes` is a whole number of them.
  static absl::StatusOr<Region> Create(const std::string& name, uint64_t bytes);
  // Maps a received descriptor (takes it over) after checking seals and size.
  static absl::StatusOr<Region> Map(int fd, uint64_t expected_bytes);
  Region() = default;
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  ~Region();

  std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }
  int fd() const { return fd_; }
  // On reserved huge pages (hugetlb): every page is one from the start.
  bool reserved_huge_pages() const { return reserved_huge_pages_; }

 private:
  static absl::StatusOr<Region> CreateOn(const std::string& name, uint64_t bytes, unsigned flags);
  absl::Status MapWhole(uint64_t bytes);

  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  int fd_ = -1;
  bool reserved_huge_pages_ = false;
};

// A file mapped read-only. Movable.
class MappedFile {
 public:
  // NotFound, InvalidArgument (no regular file, empty) name the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }

 private:
  const std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Private address space without memory behind it: a page costs memory from its first touch on. Not
// counted against the machine's memory. Movable.
class AddressSpace {
 public:
  static absl::StatusOr<AddressSpace> Reserve(uint64_t bytes);
  AddressSpace() = default;
  AddressSpace(AddressSpace&& other) noexcept;
  AddressSpace& operator=(AddressSpace&& other) noexcept;
  ~AddressSpace();

  std::byte* data() const { return data_; }
  uint64_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Sends / receives one descriptor and an 8-byte nonce over a connected unix socket (SCM_RIGHTS),
// with a deadline.
absl::Status SendDescriptor(int socket_fd, int fd, uint64_t nonce, int64_t timeout_us);
struct ReceivedDescriptor {
  int fd = -1;
  uint64_t nonce = 0;
};
absl::StatusOr<ReceivedDescriptor> ReceiveDescriptor(int socket_fd, int64_t timeout_us);

}  // namespace tandem::shm
