// Package docs holds the documentation to what is true: README.md and the pages of docs/. Its tests
// read every manifest and configuration on them, follow every link, and compare the pages of
// docs/reference that are written by hand with the code. Blocks marked as sh are run as they stand,
// by tests in test/; what a console shows and no test runs is in Unrun, with the reason. The
// command lines on the pages are read in cmd/berth, where the commands are. Only tests use this
// package.
package docs
