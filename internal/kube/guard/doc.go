// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package guard protects Berth's ports. It authenticates and authorizes callers through the API
// server, and bounds the resources and requests that unauthenticated callers can cause.
//
// Guard authenticates callers by TokenReviews and authorizes them by SubjectAccessReviews. It sends
// the reviews through a separate client (Client), so that a flood of made-up tokens delays only
// other reviews. Each source has a rate limit and a maximum number of reviews in flight, so few
// reviews are delayed. Refusals are cached separately from grants, so that they do not evict known
// callers from the cache.
//
// Listener bounds connections. A connection is unadmitted until its caller is authorized (Admit).
// If one source has too many unadmitted connections, its oldest one is closed; if there are too
// many in total, the oldest connection of the source with the most is closed. Admitted connections
// count separately, and are not closed because of unadmitted ones.
package guard
