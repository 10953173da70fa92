// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package docs keeps the documentation true: README.md and the pages of docs/. Its tests read every
// manifest and configuration on them, follow every link, and compare the hand-written pages of
// docs/reference with the code. Every page must be in an index. A measurement is on one page only;
// other pages link to it. Tests in test/ run the blocks marked sh verbatim; Unrun lists the console
// commands not run by any test, with the reason. The command lines on the pages are parsed in
// cmd/berth, next to the commands. Only tests use this package.
package docs
