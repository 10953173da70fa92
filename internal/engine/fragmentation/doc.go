// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package fragmentation values the free capacity of a node by its usefulness to future pods.
//
// Future pods are modelled as a distribution of shapes ([Task]). The worth of a node
// ([Outlook.Worth]) has three terms, all of them sums of integers, in thousandths of a device times
// [one]:
//
//   - near: the device capacity usable by the next task, on average. A free device counts for a
//     task only if the node has the CPU and memory for that task, and the device has the requested
//     share free. For a request of whole devices, the device and enough other devices must be free
//     as a whole. This is the measure of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023),
//     without its rounding.
//   - balance: a node that runs out of CPU before devices, or the reverse, strands the rest of the
//     other resource. The difference between the free shares of CPU and devices counts squared,
//     with a higher weight if the tasks want more CPU than there is.
//   - far: the remainder of a device in the end, when no task fits any more. The near term looks
//     one task ahead and cannot distinguish remainders that a common share fills exactly from badly
//     filled ones. [Remainders] finds the expected remainder by simulation: it fills devices with
//     tasks drawn from the distribution, according to its current values. Then it corrects the
//     values by the outcome, and it keeps the values that placed the most. The result is better
//     than a mean of remainders: if some tasks waste much capacity wherever they run, the values
//     reserve devices for other tasks that fill them well together.
//
// The cost of a placement is the reduction of its node's worth. For a given task it depends only on
// the node, so a cache of costs must revisit only nodes with changed pods.
package fragmentation
