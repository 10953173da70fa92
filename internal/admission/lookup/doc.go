// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package lookup looks up the objects referenced by pods in a running cluster. It reads caches
// filled by watches, and queries the API server if a cache may be stale, so that a class created a
// moment ago is found. It serves package admission in the API server and behind the webhook.
//
// Until the caches have been filled once, lookups return an error rather than a missing object: an
// early request must not give a pod wrong defaults, or none.
package lookup
