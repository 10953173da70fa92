// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package movecontroller carries out moves in a cluster: it feeds a core of package execute with
// the objects in the API server, and sends the core's requests.
package movecontroller
