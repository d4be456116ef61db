// Communicators between processes, for the emulated NCCL (nccl.cpp), which includes this file once.
//
// A group of calls is one rendezvous. A task of each process publishes its calls and the bytes that
// it sends in /dev/shm, waits for all other processes, and does its own part of the work. Calls do
// not block: they return ncclInProgress, and the caller must poll the status before the next call.
// Otherwise the process aborts.

struct across { // a process's part of a communicator
  std::string base;
  int rank, count, card;
  long meetings = 0;
  bool joined = false, asked = true; // asked: the status was polled after the latest call
  std::atomic<bool> aborted{false};
  std::atomic<int> error{MPG_ncclSuccess};

  std::string path(const std::string &what, int of) const {
    return base + "." + what + "." + std::to_string(of);
  }
  void clean() { // removes the process's own files
    unlink(path("join", rank).c_str());
    unlink(path(std::to_string(meetings), rank).c_str());
    unlink(path(std::to_string(meetings - 1), rank).c_str());
  }
};

bool publish(const std::string &path, const std::string &bytes) {
  std::string in_flight = path + ".new";
  FILE *file = fopen(in_flight.c_str(), "wb");
  if (!file) return false;
  bool written = fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  return (fclose(file) == 0) & written && rename(in_flight.c_str(), path.c_str()) == 0;
}

bool read_file(const std::string &path, std::string *bytes) {
  FILE *file = fopen(path.c_str(), "rb");
  if (!file) return false;
  fseek(file, 0, SEEK_END);
  bytes->resize((size_t)ftell(file));
  rewind(file);
  bool read = fread(&(*bytes)[0], 1, bytes->size(), file) == bytes->size();
  fclose(file);
  return read;
}

size_t sent(const part &p) { return p.what == RECV ? 0 : p.count * size_of(p.type); }

// Data that a process publishes for a rendezvous: each of its calls, followed by the bytes that the
// call sends.
struct published {
  std::string bytes;
  std::vector<part> parts; // `from` points into `bytes`

  static std::string make(const std::vector<part> &own) {
    std::string bytes;
    for (auto &p : own) {
      const uint64_t head[] = {(uint64_t)p.what, p.count, (uint64_t)p.type, (uint64_t)p.other};
      bytes.append((const char *)head, sizeof head);
      bytes.append(p.what == RECV ? "" : p.from, sent(p));
    }
    return bytes;
  }
  void take() {
    for (const char *at = bytes.data(), *end = at + bytes.size(); at < end;) {
      uint64_t head[4];
      memcpy(head, at, sizeof head);
      at += sizeof head;
      parts.push_back({(kind)head[0], at, nullptr, (size_t)head[1], (int)head[2], (int)head[3],
                       nullptr, nullptr});
      at += sent(parts.back());
    }
  }
};

// Returns the k-th send to (or receive from) rank `other`, or null.
const part *find(const std::vector<part> &parts, kind what, int other, size_t k) {
  for (auto &p : parts)
    if (p.what == what && p.other == other && k-- == 0) return &p;
  return nullptr;
}

void work_across(const across &a, const std::vector<part> &own, std::vector<published> &all) {
  std::map<int, size_t> received;
  for (size_t k = 0; k < own.size(); k++) {
    const part &p = own[k];
    if (p.what == SEND) {
      size_t sends = 0, gets = 0;
      for (auto &other : all[(size_t)p.other].parts)
        gets += other.what == RECV && other.other == a.rank;
      for (auto &other : own) sends += other.what == SEND && other.other == p.other;
      if (sends != gets) wrong("a send without its receive in another process");
    } else if (p.what == RECV) {
      const part *from = find(all[(size_t)p.other].parts, SEND, a.rank, received[p.other]++);
      if (!from || sent(*from) != p.count * size_of(p.type))
        wrong("a receive without its send in another process");
      memcpy(p.to, from->from, sent(*from));
    } else {
      std::vector<part> parts;
      for (auto &other : all) {
        if (other.parts.size() != own.size() || other.parts[k].what != p.what ||
            other.parts[k].count != p.count || other.parts[k].type != p.type)
          wrong("processes call different collectives");
        parts.push_back(other.parts[k]);
      }
      size_t each = p.count * size_of(p.type);
      if (p.what == ALL_REDUCE) {
        auto total = sum_all(parts);
        memcpy(p.to, total.data(), each);
      } else if (p.what == ALL_GATHER) {
        for (size_t i = 0; i < parts.size(); i++) memcpy(p.to + i * each, parts[i].from, each);
      } else {
        wrong("a collective of processes that it does not have");
      }
    }
  }
}

struct attendance {
  std::shared_ptr<across> all;
  std::vector<part> own;
  long number;
};

void attend(void *data) {
  std::unique_ptr<attendance> self((attendance *)data);
  across &a = *self->all;
  std::string number = std::to_string(self->number);
  std::vector<published> all((size_t)a.count);
  if (cudaSetDevice(a.card) != cudaSuccess ||
      !publish(a.path(number, a.rank), published::make(self->own)))
    a.error = MPG_ncclSystemError;
  for (int rank = 0; rank < a.count; rank++) {
    while (!a.aborted && !read_file(a.path(number, rank), &all[(size_t)rank].bytes)) usleep(50);
    if (a.aborted) return;
    all[(size_t)rank].take();
  }
  work_across(a, self->own, all);
  unlink(a.path(std::to_string(self->number - 1), a.rank).c_str()); // read by all processes
}

ncclResult_t meet_across(const std::shared_ptr<across> &a, std::vector<part> own) {
  if (!a->joined || !a->asked) wrong("the last call may still be in progress");
  a->asked = false;
  cudaStream_t stream = own[0].stream;
  for (auto &p : own)
    if (p.stream != stream) wrong("one group of calls on several streams");
  cudaLaunchHostFunc(stream, attend, new attendance{a, std::move(own), ++a->meetings});
  return MPG_ncclInProgress;
}

// Returns ncclSuccess once all processes have joined, ncclInProgress before that, and
// ncclInvalidUsage if two processes use the same card.
ncclResult_t look_joined(across &a) {
  std::set<std::string> cards;
  for (int rank = 0; rank < a.count; rank++) {
    std::string card;
    if (!read_file(a.path("join", rank), &card)) return MPG_ncclInProgress;
    cards.insert(card);
  }
  if ((int)cards.size() != a.count) return MPG_ncclInvalidUsage;
  a.joined = true;
  return MPG_ncclSuccess;
}
