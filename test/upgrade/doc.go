// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package upgrade tests that one version of Berth accepts the inputs and files of another: flags,
// configuration files, recordings, and the data folder of `berth up`, from the old version to this
// version and back. Package soak tests that components of two versions run together under load.
//
// The other version is built: the tests are skipped unless it is named. `make upgrade OLD=REVISION`
// names it.
package upgrade
