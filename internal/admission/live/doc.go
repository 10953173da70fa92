// Package live finds in a running cluster what pods name: from caches that
// watches fill, and at the API server itself where a cache may be behind, so
// that a class that was made a moment ago is found. It feeds package admission
// in the API server and behind the webhook.
//
// Until the caches have been filled once it answers with an error and never
// with "there is none": a pod must not be given wrong defaults, or none, because
// somebody asked too early.
package live
