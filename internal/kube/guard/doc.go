// Package guard stands before Berth's ports. It answers who a caller is and what they may do, as
// the API server says, and bounds what callers can make a process hold or ask before that is known.
//
// Guard asks the API server: TokenReview to authenticate a caller, SubjectAccessReview to authorize
// one. The questions go through a client of their own (Client), so that a flood of made-up tokens
// delays nothing but other questions of its kind, and not many of those: each source has a rate and
// few questions under way, and refusals are remembered apart from what was granted, so that they
// displace no one who is known.
//
// Listener bounds connections. Strangers are those whose caller was not let in yet: where there are
// too many of them, from one source or in all, the oldest of the source that has most is closed.
// Who was let in (Admit) counts apart, and cannot be displaced by strangers.
package guard
