// Package guard protects Berth's ports. It authenticates and authorizes callers as the API server
// says, and bounds what they can make a process hold or ask before that is known.
//
// Guard asks the API server: TokenReview to authenticate a caller, SubjectAccessReview to authorize
// one. The requests use a client of their own (Client), so that a flood of made-up tokens delays
// only other reviews, and few of those: each source has a rate limit and few reviews in flight, and
// refusals are cached apart from what was granted, so that they displace no known caller.
//
// Listener bounds connections. Strangers are connections whose caller has not been let in yet. If
// there are too many of them, from one source or in all, the oldest one of the source with the most
// is closed. Connections that were let in (Admit) count separately and cannot be displaced by
// strangers.
package guard
