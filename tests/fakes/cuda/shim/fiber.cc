#include "tests/fakes/cuda/shim/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define TANDEM_ASAN 1
#endif

#if defined(__x86_64__)
// Saves the callee-saved registers on the stack, stores the stack pointer at *from and continues at
// `to`. swapcontext would do a system call for the signal mask at every switch.
extern "C" void TandemFiberSwitch(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl TandemFiberSwitch
.hidden TandemFiberSwitch
.type TandemFiberSwitch,@function
TandemFiberSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size TandemFiberSwitch,.-TandemFiberSwitch
.p2align 4
.globl TandemFiberEntry
.hidden TandemFiberEntry
.type TandemFiberEntry,@function
TandemFiberEntry:
  movq %r14, %rdi
  call TandemFiberRun
  ud2
.size TandemFiberEntry,.-TandemFiberEntry
)");
extern "C" void TandemFiberEntry() __attribute__((visibility("hidden")));
extern "C" __attribute__((visibility("hidden"), used)) void TandemFiberRun(void* fiber);
#else
#include <ucontext.h>
#endif

namespace tandem::shim {

void RunFiberBody(void* fiber);

namespace {

constexpr size_t kStackBytes = size_t{128} << 10;
constexpr size_t kGuardBytes = size_t{64} << 10;  // pages of any size

class StackFiber final : public Fiber {
 public:
  StackFiber() {
    void* mapped = mmap(nullptr, kGuardBytes + kStackBytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      std::perror("a fiber's stack");
      std::abort();
    }
    mapped_ = static_cast<std::byte*>(mapped);
    if (mprotect(stack(), kStackBytes, PROT_READ | PROT_WRITE) != 0) {
      std::perror("a fiber's stack");
      std::abort();
    }
  }
  ~StackFiber() override {
#ifdef TANDEM_ASAN
    __asan_unpoison_memory_region(stack(), kStackBytes);
#endif
    munmap(mapped_, kGuardBytes + kStackBytes);
  }

  void Start(void (*body)(void*), void* argument) override {
    body_ = body;
    argument_ = argument;
    ended_ = false;
#ifdef TANDEM_ASAN
    fake_stack_ = nullptr;  // the last body's is gone
    __asan_unpoison_memory_region(stack(), kStackBytes);
#endif
#if defined(__x86_64__)
    auto* top = reinterpret_cast<void**>(stack() + kStackBytes) - 2;
    *--top = reinterpret_cast<void*>(&TandemFiberEntry);
    for (int i = 0; i < 6; ++i) {
      *--top = nullptr;
    }
    top[1] = this;  // popped into %r14
    context_ = top;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack();
    context_.uc_stack.ss_size = kStackBytes;
    const auto address = reinterpret_cast<uintptr_t>(this);
    makecontext(&context_, reinterpret_cast<void (*)()>(&EntryFromHalves), 2,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
#endif
  }

  void Resume() override {
#ifdef TANDEM_ASAN
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, stack(), kStackBytes);
#endif
#if defined(__x86_64__)
    TandemFiberSwitch(&host_, context_);
#else
    swapcontext(&host_, &context_);
#endif
#ifdef TANDEM_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  void Suspend() override { ToHost(); }
  bool ended() const override { return ended_; }

 private:
  std::byte* stack() const { return mapped_ + kGuardBytes; }

  void ToHost() {
#ifdef TANDEM_ASAN
    // A body that ended gives its fake stack back.
    __sanitizer_start_switch_fiber(ended_ ? nullptr : &fake_stack_, host_stack_, host_stack_bytes_);
#endif
#if defined(__x86_64__)
    TandemFiberSwitch(&context_, host_);
#else
    swapcontext(&context_, &host_);
#endif
    Arrived();
  }

  void Arrived() {
#ifdef TANDEM_ASAN
    __sanitizer_finish_switch_fiber(fake_stack_, &host_stack_, &host_stack_bytes_);
#endif
  }

  void Run() {
    Arrived();
    body_(argument_);
    ended_ = true;
    ToHost();
    std::abort();  // an ended fiber is started anew, never resumed
  }

#if !defined(__x86_64__)
  static void EntryFromHalves(unsigned high, unsigned low) {
    const auto address = uintptr_t{high} << 32 | low;
    reinterpret_cast<StackFiber*>(address)->Run();
  }
#endif
  friend void RunFiber(void* fiber);

  std::byte* mapped_ = nullptr;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool ended_ = true;
#if defined(__x86_64__)
  void* context_ = nullptr;
  void* host_ = nullptr;
#else
  ucontext_t context_{};
  ucontext_t host_{};
#endif
#ifdef TANDEM_ASAN
  void* fake_stack_ = nullptr;
  const void* host_stack_ = nullptr;
  size_t host_stack_bytes_ = 0;
#endif
};

void RunFiber(void* fiber) { static_cast<StackFiber*>(fiber)->Run(); }

}  // namespace

std::unique_ptr<Fiber> Fiber::Create() { return std::make_unique<StackFiber>(); }

void RunFiberBody(void* fiber) { RunFiber(fiber); }

}  // namespace tandem::shim

#if defined(__x86_64__)
void TandemFiberRun(void* fiber) { tandem::shim::RunFiberBody(fiber); }
#endif
