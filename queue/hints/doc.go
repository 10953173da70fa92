// Package hints says what can help pods that one of Berth's own plugins rejected: for every plugin the events that matter, and for
// an event whether it can change that plugin's mind about pods of a class. Upstream's plugins say the same (isSchedulableAfter…);
// where an event that upstream passes over can help, it counts here, and where upstream wakes every pod, only those are woken that
// the event can help: a pod that leaves a node wakes those that its room is enough for.
//
// A hint may be asked for when further events have happened already. It looks at what is there now: if that does not help, a later
// event that does is asked about by itself.
package hints
