// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package virtual runs the pure cores in virtual time against simulated API servers that fail.
//
// A test world owns the objects; this package provides everything else: the clock (Time), the
// process that runs a core, over all its lives (Process), its watches (Watch) and its requests
// (Line), with the faults of all of them. Verify checks the properties that every core must have
// whatever the responses are. All randomness derives from one source, so a run can be repeated.
package virtual
