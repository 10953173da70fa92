// Package journal records the events that the scheduling cycle was given, and replays them.
//
// A journal is a file of records: a header with what the core was made from, then each event with
// its time and the actions that followed from it. The core is pure (see package cycle), so another
// core that is given the same events returns the same actions, byte for byte. [Replay] checks that.
// It is the way to look into a past decision, or to try another build on the same events.
//
// Records carry a length and a checksum. A file that ends in the middle of a record, as after a
// kill, is read up to there.
//
// Environments, commands, arguments, probes and hooks of containers are left out, and so are the
// templates of workloads and managed fields. The values of annotations that no decision reads, and
// what is handed to drivers of volumes, are replaced by hashes, so that changes remain visible. The
// hashes depend on a key that each process draws and writes nowhere.
// Parameters of device claims and classes are kept: an allocation is written with them. Of custom
// resources that out-of-tree plugins watch, only the kind of event is kept.
package journal
