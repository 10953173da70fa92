// Package live reads from a cluster what package check judges. It only reads; the only objects that
// it creates are permission queries (SubjectAccessReview and SelfSubjectAccessReview), which are
// not stored. What it may not read is left out, and named in Facts.Unread.
package live
