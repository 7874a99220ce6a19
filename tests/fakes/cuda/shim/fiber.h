#pragma once

#include <cstddef>
#include <functional>
#include <memory>

// Cooperative threads on stacks of their own, for running the threads of a GPU block on one host
// thread. AddressSanitizer is told of every switch.
namespace tandem::shim {

class Fiber {
 public:
  // Owns a stack, used by one body after another.
  static std::unique_ptr<Fiber> Create();
  virtual ~Fiber() = default;

  // Called by the host thread: gives the fiber a body to run when it is resumed next.
  virtual void Start(void (*body)(void*), void* argument) = 0;
  // Called by the host thread: runs the fiber until it suspends or its body ends.
  virtual void Resume() = 0;
  // Called on the fiber: back to the host thread.
  virtual void Suspend() = 0;
  virtual bool ended() const = 0;
};

}  // namespace tandem::shim
