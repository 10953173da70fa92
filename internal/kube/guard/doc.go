// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package guard protects Berth's ports. It authenticates and authorizes callers by the API server,
// and bounds the resources held and the requests caused by unauthenticated callers.
//
// Guard uses TokenReview to authenticate a caller, and SubjectAccessReview to authorize one. It
// sends the requests through a separate client (Client), so that a flood of made-up tokens delays
// only other reviews, and few of those: each source has a rate limit and few reviews in flight, and
// refusals are cached separately from grants, so that they displace no known caller.
//
// Listener bounds connections. With too many unadmitted connections, from callers not yet let in,
// from one source or in total, the oldest one of the source with the most is closed.
// Admitted connections (Admit) count separately and cannot be displaced by unadmitted ones.
package guard
