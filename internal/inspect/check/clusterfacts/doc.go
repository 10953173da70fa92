// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package clusterfacts reads from a cluster the facts judged by package check. It only reads,
// except for creating permission queries (SubjectAccessReview and SelfSubjectAccessReview), which
// are not stored. Parts without read permission are skipped, and named in Facts.Unread.
package clusterfacts
