// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package journal records the events of the scheduling cycle, and replays them.
//
// A journal is a file of records: a header with the core's options, then each event with its time
// and the resulting actions. The core is pure (see package cycle), so another core given the same
// events returns the same actions, byte for byte. [Replay] checks that. It serves to examine a past
// decision, or to try another build on the same events.
//
// Records carry a length and a checksum. A file ending in the middle of a record, for example after
// a kill, is read up to that point.
//
// A journal omits environments, commands, arguments, probes and hooks of containers, the templates
// of workloads, and managed fields. The values of annotations not used by decisions, and the
// parameters of volume drivers, are replaced by hashes, so that changes remain visible. The hashes
// depend on a key that each process draws and never writes. Parameters of device claims and classes
// are kept, because allocations contain them. Of custom resources watched by out-of-tree plugins,
// only the kind of event is kept.
package journal
