// Package live reads from a cluster what package check judges. It only reads; the one thing that it
// creates are questions about rights (SubjectAccessReview and SelfSubjectAccessReview), which leave
// nothing behind. What it may not read is named and left out.
package live
