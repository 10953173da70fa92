// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package upgrade tests that this version of Berth accepts the inputs and files of an old version:
// flags, configuration files, recordings, and the data folder of `berth up`. Where possible, it
// also tests that the old version accepts this version's files. Package soak tests that components
// of two versions run together under load.
//
// `make upgrade OLD=REVISION` builds the old version and runs the tests. They are skipped if no old
// version is named.
package upgrade
