#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"

namespace tandem::router {

struct HttpReply {
  int status = 0;                              // 0: the connection ended before one came
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool complete = false;  // the body came to its proper end
  nlohmann::ordered_json json() const { return nlohmann::ordered_json::parse(body); }
};

// A blocking HTTP/1.1 client over one connection, which sends and reads exactly what it is told.
class HttpClient {
 public:
  // `receive_buffer_bytes` of 0 leaves the system's.
  explicit HttpClient(int port, int receive_buffer_bytes = 0);
  ~HttpClient() { Close(); }

  void Send(std::string_view bytes);
  // A request with Content-Length.
  void SendRequest(const std::string& method, const std::string& path, const std::string& body,
                   const std::string& headers = "");
  HttpReply ReadReply();
  HttpReply Request(const std::string& method, const std::string& path,
                    const std::string& body = "", const std::string& headers = "");
  // Reads a reply's headers only; then its events one by one.
  HttpReply ReadHead();
  // The data of the next event; nothing at the end of the stream.
  std::optional<std::string> ReadEvent();
  // The name of the event that was read last; empty for most.
  const std::string& event_name() const { return event_name_; }
  // Comments that stood between the events.
  int comments() const { return comments_; }
  // The stream came to its proper end.
  bool ended_properly() const { return ended_properly_; }
  // True when the server closes within the time, which is generous.
  bool WaitForClose();
  void Close();

 private:
  bool Fill();
  std::optional<std::string> ReadLine();
  bool ReadChunk(std::string* out);

  int socket_ = -1;
  std::string buffer_;
  std::string events_;
  std::string event_name_;
  bool ended_properly_ = false;
  int comments_ = 0;
};

}  // namespace tandem::router
