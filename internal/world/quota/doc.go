// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package quota has the rules of ResourceQuotas: the pods covered by a quota, the usage of a pod,
// and the API server's messages of refusal. They are pure rules over API objects, shared by
// simulations and the plan of a drain.
package quota
