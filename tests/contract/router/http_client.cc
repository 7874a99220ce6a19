#include "tests/contract/router/http_client.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

namespace tandem::router {
namespace {

constexpr int kPatienceSeconds = 30;

}  // namespace

HttpClient::HttpClient(int port, int receive_buffer_bytes) {
  socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer_bytes > 0) {
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(int));
  }
  const timeval patience{kPatienceSeconds, 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    Close();
  }
}

void HttpClient::Close() {
  if (socket_ >= 0) {
    close(socket_);
    socket_ = -1;
  }
}

void HttpClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) {
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void HttpClient::SendRequest(const std::string& method, const std::string& path,
                             const std::string& body, const std::string& headers) {
  Send(method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + headers +
       "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
}

HttpReply HttpClient::Request(const std::string& method, const std::string& path,
                              const std::string& body, const std::string& headers) {
  SendRequest(method, path, body, headers);
  return ReadReply();
}

bool HttpClient::Fill() {
  char bytes[16384];
  const ssize_t n = recv(socket_, bytes, sizeof bytes, 0);
  if (n > 0) {
    buffer_.append(bytes, static_cast<size_t>(n));
  }
  return n > 0;
}

std::optional<std::string> HttpClient::ReadLine() {
  size_t end = buffer_.find("\r\n");
  while (end == std::string::npos) {
    if (!Fill()) {
      return std::nullopt;
    }
    end = buffer_.find("\r\n");
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

HttpReply HttpClient::ReadHead() {
  HttpReply reply;
  const auto status = ReadLine();
  if (!status || status->size() < 12) {
    return reply;
  }
  const int code = std::atoi(status->c_str() + 9);
  while (const auto line = ReadLine()) {
    if (line->empty()) {
      if (code == 100) {
        return ReadHead();
      }
      reply.status = code;
      return reply;
    }
    const size_t colon = line->find(':');
    std::string name = line->substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    reply.headers[name] = line->substr(colon + 2);
  }
  return reply;
}

bool HttpClient::ReadChunk(std::string* out) {
  const auto size_line = ReadLine();
  if (!size_line) {
    return false;
  }
  const size_t size = std::strtoul(size_line->c_str(), nullptr, 16);
  while (buffer_.size() < size + 2) {
    if (!Fill()) {
      return false;
    }
  }
  out->append(buffer_, 0, size);
  buffer_.erase(0, size + 2);
  ended_properly_ = size == 0;
  return size > 0;
}

HttpReply HttpClient::ReadReply() {
  HttpReply reply = ReadHead();
  if (reply.status == 0) {
    return reply;
  }
  if (reply.headers.contains("content-length")) {
    const size_t size = std::stoul(reply.headers["content-length"]);
    while (buffer_.size() < size && Fill()) {
    }
    reply.complete = buffer_.size() >= size;
    reply.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return reply;
  }
  ended_properly_ = false;
  while (ReadChunk(&reply.body)) {
  }
  reply.complete = ended_properly_;
  return reply;
}

std::optional<std::string> HttpClient::ReadEvent() {
  size_t end = events_.find("\n\n");
  while (end == std::string::npos) {
    if (!ReadChunk(&events_)) {
      return std::nullopt;
    }
    end = events_.find("\n\n");
  }
  std::string event = events_.substr(0, end);
  events_.erase(0, end + 2);
  if (event.starts_with(':')) {  // a comment
    ++comments_;
    return ReadEvent();
  }
  event_name_.clear();
  if (event.starts_with("event: ")) {
    event_name_ = event.substr(7, event.find('\n') - 7);
    event.erase(0, event.find('\n') + 1);
  }
  return event.substr(6);  // "data: "
}

bool HttpClient::WaitForClose() {
  while (Fill()) {
  }
  char byte = 0;
  return recv(socket_, &byte, 1, 0) == 0 || errno == ECONNRESET;
}

}  // namespace tandem::router
