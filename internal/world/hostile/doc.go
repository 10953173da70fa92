// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package hostile generates objects within one tenant's permissions, for tests of their cost to the
// rest of the cluster.
//
// [Kinds] are the kinds that the ClusterRole edit lets a tenant write in a namespace, and that
// Berth reads. [Paths] finds, by reflection, the fields of unbounded length in such a kind: texts,
// lists and maps. A [Generator] makes objects in which one of these fields has a requested length,
// and the others are empty or short. A field added by a later version of the API is found without a
// change here.
package hostile
