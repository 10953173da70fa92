// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package hostile generates objects within one tenant's permissions, for tests of their cost to the
// rest of the cluster.
//
// [Kinds] are the kinds that Berth reads and that a tenant may write in a namespace with the
// ClusterRole edit. [Paths] finds, by reflection, the fields of unbounded length in such a kind:
// texts, lists and maps. A [Generator] creates objects with one of these fields at a requested
// length, and all other fields empty or short. Fields added by a later version of the API are
// covered automatically.
package hostile
