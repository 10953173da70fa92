// Package journal writes down what the scheduling cycle was told, and plays it again.
//
// A journal is a file of records: a header with what the core was made of, then each event with its
// time and with the actions that followed from it. The core is pure (see package cycle), so another
// core that is told the same events says the same actions, byte for byte; [Replay] checks that, and
// is the way to look into a decision of yesterday, or to try another build on it.
//
// Records carry a length and a checksum. A file that ends in the middle of a record, as a kill
// leaves it, is read up to there.
//
// Environments, commands, arguments and probes of containers are left out, and so are managed
// fields; values of annotations of pods, and last-applied configurations, are replaced by a hash,
// so that it can still be seen that they changed.
package journal
