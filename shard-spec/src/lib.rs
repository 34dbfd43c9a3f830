//! Meshes, placements, partitions and layouts: where every piece of a distributed tensor lives.
